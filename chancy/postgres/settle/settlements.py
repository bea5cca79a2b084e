"""Settling: fenced, in batches, one bad settlement never holding up the others."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import TypeVar
from uuid import UUID

from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.transaction import TransactionHook
from chancy.errors import StatementFailed
from chancy.postgres.connections.dedicated import DedicatedSession, Fetch
from chancy.postgres.drivers.base import Row
from chancy.postgres.settle.plugin_writes import PluginWrites
from chancy.postgres.statements import Statements
from chancy.states import State

logger = logging.getLogger("chancy.postgres")

#: Settlements of one statement, at most.
BATCH = 1_000

T = TypeVar("T")

_place = attrgetter("id.int")
# `State.final` is a property: a tenth of a microsecond for each job.
_FIRST_FINAL = min(state for state in State if state.final)


class Settlements:
    """The settlements of the workers of this process."""

    def __init__(self, link: DedicatedSession, statements: Statements) -> None:
        self._link = link
        self._sql = statements
        self._insiders = PluginWrites(statements.schema)

    async def settle(
        self, settlements: Sequence[Settlement], inside: Sequence[TransactionHook] = ()
    ) -> frozenset[UUID]:
        """See `Broker.settle`."""
        # The rows are locked in the order given: in one order for everybody, or two who settle
        # the same attempts (a worker and its rescuer) would hold each other up.
        ordered = sorted(settlements, key=_place)
        finals = [one for one in ordered if one.state >= _FIRST_FINAL]
        others = [one for one in ordered if one.state < _FIRST_FINAL]
        stale: set[UUID] = set()
        for batch in (*_batches(finals), *_batches(others)):
            stale |= await self._settle(batch, inside)
        return frozenset(stale)

    async def note(self, notes: Sequence[Note]) -> frozenset[UUID]:
        """See `Broker.note`."""
        ordered = sorted(notes, key=_place)
        stale: set[UUID] = set()
        for at in range(0, len(ordered), BATCH):
            stale |= await self._note(ordered[at : at + BATCH])
        return frozenset(stale)

    async def _note(self, batch: Sequence[Note]) -> set[UUID]:
        id, lease, meta = zip(*batch, strict=True)
        try:
            rows = await self._link.fetch(self._sql.update_meta, list(id), list(lease), list(meta))
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(batch) > 1:
                middle = len(batch) // 2
                return await self._note(batch[:middle]) | await self._note(batch[middle:])
            logger.error("meta_update_refused job=%s error=%s", batch[0].id, error)
            return set()
        return set(id) - {row[0] for row in rows}

    async def _settle(
        self, batch: Sequence[Settlement], inside: Sequence[TransactionHook]
    ) -> set[UUID]:
        """Settle a batch of one kind; on a refusal halve it until the bad one stands alone."""
        try:
            accepted = await self._accept_with(batch, inside)
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(batch) > 1:
                middle = len(batch) // 2
                first = await self._settle(batch[:middle], inside)
                return first | await self._settle(batch[middle:], inside)
            logger.error("settlement_refused job=%s error=%s", batch[0].id, error)
            accepted = await self._accept_with([_failed(batch[0], error)], inside)
        if len(accepted) == len(batch):
            return set()
        ids = {row[0] for row in accepted}
        missing = [one for one in batch if one.id not in ids]
        before = await self._link.fetch(
            self._sql.settled, [one.id for one in missing], [one.lease for one in missing]
        )
        return {one.id for one in missing} - {row[0] for row in before}

    async def _accept_with(
        self, batch: Sequence[Settlement], inside: Sequence[TransactionHook]
    ) -> Sequence[Row]:
        """Settle a batch, and what plugins write with it, at once or not at all."""
        wanted = self._insiders.wanted(inside, batch)
        if wanted:
            async with self._link.transaction() as session:
                accepted = await self._accept(batch, session.fetch)
                ids = {row[0] for row in accepted}
                await self._insiders.write(session, wanted, [one for one in batch if one.id in ids])
        else:
            accepted = await self._accept(batch, self._link.fetch)
        self._insiders.forgive(inside, batch)
        return accepted

    async def _accept(self, batch: Sequence[Settlement], fetch: Fetch) -> Sequence[Row]:
        """One row for each settlement that the server took, the id in it."""
        settle = self._finish if batch[0].state.final else self._put_back
        return await settle(batch, fetch)

    async def _finish(self, batch: Sequence[Settlement], fetch: Fetch) -> Sequence[Row]:
        id, lease, state, _, _, failure, result, refund, crashed, meta = zip(*batch, strict=True)
        return await fetch(
            self._sql.finish,
            list(id),
            list(lease),
            list(state),
            _given(result, None),
            _failures(failure),
            _given(refund, False),
            _given(crashed, False),
            _given(meta, None),
        )

    async def _put_back(self, batch: Sequence[Settlement], fetch: Fetch) -> Sequence[Row]:
        id, lease, state, _, run_at, failure, _, refund, crashed, meta = zip(*batch, strict=True)
        return await fetch(
            self._sql.requeue,
            list(id),
            list(lease),
            list(state),
            [_delay_s(one) for one in batch],
            list(run_at),
            _failures(failure),
            _given(refund, False),
            _given(crashed, False),
            _given(meta, None),
        )


def _batches(settlements: list[Settlement]) -> list[list[Settlement]]:
    return [settlements[at : at + BATCH] for at in range(0, len(settlements), BATCH)]


def _given(values: tuple[T, ...], usual: T) -> list[T] | None:
    """One value for each settlement; None if all have the usual one, as they mostly do."""
    return None if values.count(usual) == len(values) else list(values)


def _failures(failures: tuple[Failure | None, ...]) -> list[str | None] | None:
    if failures.count(None) == len(failures):
        return None
    return [None if one is None else json.dumps(one.as_json()) for one in failures]


def _delay_s(settlement: Settlement) -> float | None:
    if settlement.state is not State.SCHEDULED or isinstance(settlement.run_at, datetime):
        return None
    return settlement.delay_s or 0.0


def _failed(settlement: Settlement, error: StatementFailed) -> Settlement:
    """What is settled instead of a settlement that the server refuses."""
    failure = Failure.named(
        "chancy.errors.StatementFailed",
        f"the settlement as {settlement.state.label} could not be stored: {error}",
    )
    return Settlement(settlement.id, settlement.lease, State.FAILED, failure=failure)

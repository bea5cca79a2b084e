"""Settles attempts: fenced and in batches; a settlement that cannot be stored fails alone."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Sequence, Set
from datetime import datetime
from operator import attrgetter
from typing import TypeVar
from uuid import UUID

from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.transaction import TransactionHook
from chancy.errors import LOCK_NOT_AVAILABLE, BrokerError, RowsLocked, StatementFailed
from chancy.postgres.connections.lane import Fetch, Lane
from chancy.postgres.settle.plugin_writes import PluginWrites
from chancy.postgres.statements import Statements
from chancy.states import State

logger = logging.getLogger("chancy.postgres")

#: Maximum number of settlements in one statement.
BATCH = 1_000
#: Seconds between removals of ids from the table recently_finished.
_FORGET_EVERY_S = 60.0

T = TypeVar("T")

_lock_order, _state = attrgetter("id.int"), attrgetter("state")
# `State.final` is a property that takes a tenth of a microsecond for each job.
_FIRST_FINAL = min(state for state in State if state.final)
#: Classes of SQLSTATEs that may not be about one job: an error in a statement, a missing privilege
#: or schema, an object that cannot be used now, an internal error. A trigger may raise them, too.
_OF_ALL_JOBS = ("42", "3F", "55", "XX")
#: Jobs of a call whose every outcome is refused. With more, the cause is not one job.
_MOST_REFUSED = 32
#: Jobs refused for such a reason since one was last stored. With more, it is that of all jobs.
_MOST_SUSPECTS = 8


class Settlements:
    """Settles attempts for the workers of this process."""

    def __init__(self, lane: Lane, statements: Statements) -> None:
        self._lane = lane
        self._sql = statements
        self._plugin_writes = PluginWrites(statements.schema)
        self._forget_at = 0.0
        #: Jobs whose rows were locked at the last try.
        self._blocked: frozenset[UUID] = frozenset()
        #: Jobs of the current call whose every outcome was refused.
        self._refused = 0
        #: Jobs refused for a reason that may be that of all jobs, since one was last stored.
        self._suspects: set[UUID] = set()

    async def settle(
        self, settlements: Sequence[Settlement], inside: Sequence[TransactionHook] = ()
    ) -> frozenset[UUID]:
        """See `Broker.settle`."""
        # Rows are locked in the given order. Sorting prevents deadlocks between two workers that
        # settle the same attempts (a worker and its rescuer).
        ordered = sorted(settlements, key=_lock_order)
        self._refused = 0
        again = self._blocked
        blocked = await self._still_locked(ordered)
        if blocked:
            ordered = [settlement for settlement in ordered if settlement.id not in blocked]
        finals, others = ordered, list[Settlement]()
        if any(state < _FIRST_FINAL for state in set(map(_state, ordered))):
            finals = [settlement for settlement in ordered if settlement.state >= _FIRST_FINAL]
            others = [settlement for settlement in ordered if settlement.state < _FIRST_FINAL]
        stale: Set[UUID]
        try:
            batches = (*_batches(finals, again), *_batches(others, again))
            stale = await self._settle_each(batches, inside)
        except RowsLocked as error:
            stale = error.stale
            blocked |= error.ids
        self._blocked |= blocked
        if time.monotonic() >= self._forget_at:
            await self._forget_finished()
        if blocked:
            raise RowsLocked(frozenset(blocked), frozenset(stale))
        return frozenset(stale)

    async def _still_locked(self, settlements: Sequence[Settlement]) -> set[UUID]:
        """The jobs whose rows were locked at the last try and still are. Does not wait for the
        locks, which would delay the other settlements by a second at each try."""
        if not self._blocked:
            return set()
        tried = self._blocked.intersection(settlement.id for settlement in settlements)
        if not tried:
            return set()
        locked = {row[0] for row in await self._lane.fetch(self._sql.locked, list(tried))}
        self._blocked -= tried
        return locked

    async def _forget_finished(self) -> None:
        """Remove old ids of finished jobs. Done by workers that settle: idle ones add none."""
        self._forget_at = time.monotonic() + _FORGET_EVERY_S
        try:
            await self._lane.fetch(self._sql.forget_finished)
        except BrokerError as error:
            logger.warning("recently_finished_not_purged error=%s", error)

    async def update_meta(self, notes: Sequence[Note]) -> frozenset[UUID]:
        """See `Broker.update_meta`."""
        ordered = sorted(notes, key=_lock_order)
        stale: set[UUID] = set()
        locked: set[UUID] = set()
        for at in range(0, len(ordered), BATCH):
            await self._update_meta(ordered[at : at + BATCH], stale, locked)
        if locked:
            raise RowsLocked(frozenset(locked), frozenset(stale))
        return frozenset(stale)

    async def _update_meta(
        self, batch: Sequence[Note], stale: set[UUID], locked: set[UUID]
    ) -> None:
        id, lease, meta, _ = zip(*batch, strict=True)
        try:
            rows = await self._lane.fetch(self._sql.update_meta, list(id), list(lease), list(meta))
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._update_meta(batch[:middle], stale, locked)
                await self._update_meta(batch[middle:], stale, locked)
                return
            logger.error("meta_update_refused job=%s error=%s", batch[0].id, error)
            batch[0].on_refused(error)
            return
        stale |= set(id) - {row[0] for row in rows}
        locked |= {row[0] for row in rows if not row[1]}

    async def _settle_each(
        self, batches: Iterable[Sequence[Settlement]], inside: Sequence[TransactionHook]
    ) -> set[UUID]:
        """Settle batches; one with locked rows does not stop the next ones."""
        stale: set[UUID] = set()
        blocked: set[UUID] = set()
        for batch in batches:
            try:
                stale |= await self._settle(batch, inside)
            except RowsLocked as error:
                stale |= error.stale
                blocked |= error.ids
        if blocked:
            raise RowsLocked(frozenset(blocked), frozenset(stale))
        return stale

    async def _settle(
        self, batch: Sequence[Settlement], inside: Sequence[TransactionHook]
    ) -> set[UUID]:
        """Settle a batch of one kind. If the server rejects it, halve it to isolate the bad one.

        :raises RowsLocked: rows are locked; the other settlements are stored.
        """
        try:
            accepted = await self._store_with_hooks(batch, inside)
        except StatementFailed as error:
            if error.sqlstate == LOCK_NOT_AVAILABLE:
                return await self._settle_unlocked(batch, inside, error)
            if error.retryable:
                raise
            if len(batch) > 1:
                middle = len(batch) // 2
                return await self._settle_each((batch[:middle], batch[middle:]), inside)
            accepted = await self._store_refused(batch[0], inside)
        # That a job could be released does not show that one can be finished.
        if accepted != set() and batch[0].state.final:
            self._suspects.clear()
        if accepted is None:
            return set()
        missing = [settlement for settlement in batch if settlement.id not in accepted]
        settled_before = await self._lane.fetch(
            self._sql.settled,
            [settlement.id for settlement in missing],
            [settlement.lease for settlement in missing],
        )
        stale = {settlement.id for settlement in missing} - {row[0] for row in settled_before}
        self._suspects -= stale
        return stale

    async def _settle_unlocked(
        self,
        batch: Sequence[Settlement],
        inside: Sequence[TransactionHook],
        error: StatementFailed,
    ) -> set[UUID]:
        """Settle the jobs that no other transaction has locked: a locked row delays no others."""
        ids = [settlement.id for settlement in batch]
        locked = {row[0] for row in await self._lane.fetch(self._sql.locked, ids)}
        if not locked:
            raise error  # another lock, or one that was released meanwhile: the caller repeats it
        free = [settlement for settlement in batch if settlement.id not in locked]
        stale: set[UUID] = set()
        if free:
            try:
                stale = await self._settle(free, inside)
            except RowsLocked as more:  # locked meanwhile
                stale = set(more.stale)
                locked |= more.ids
        raise RowsLocked(frozenset(locked), frozenset(stale))

    async def _store_refused(
        self, settlement: Settlement, inside: Sequence[TransactionHook]
    ) -> Set[UUID] | None:
        """Store a settlement that was refused: as it is if the reason has passed, or as failed.

        :raises RowsLocked: a trigger, for example, refuses this job as failed, too.
        """
        try:
            return await self._store_with_hooks([settlement], inside)
        except StatementFailed as error:
            if error.retryable:
                raise
            logger.error("settlement_refused job=%s error=%s", settlement.id, error)
            try:
                return await self._store_with_hooks([_failed(settlement, error)], inside)
            except StatementFailed as again:
                self._refused += 1
                if again.sqlstate.startswith(_OF_ALL_JOBS):
                    self._suspects.add(settlement.id)
                suspicious = len(self._suspects) > _MOST_SUSPECTS
                if again.retryable or suspicious or self._refused > _MOST_REFUSED:
                    raise
                raise RowsLocked(frozenset({settlement.id}), frozenset()) from again

    async def _store_with_hooks(
        self, batch: Sequence[Settlement], inside: Sequence[TransactionHook]
    ) -> Set[UUID] | None:
        """Store a batch and the writes of plugins in one transaction. Returns as `_store`."""
        wanted = self._plugin_writes.wanted(inside, batch)
        stored = False
        accepted: Set[UUID] | None = None
        if wanted:
            try:
                async with self._lane.transaction() as session:
                    accepted = await self._store(batch, session.fetch)
                    stored = True
                    await self._plugin_writes.write(session, wanted, accepted)
            except StatementFailed as error:
                if not stored:
                    raise
                # The commit was refused, for example by a deferred constraint of a plugin.
                self._plugin_writes.refused(wanted, accepted, error)
                stored = False
        if not stored:
            accepted = await self._store(batch, self._lane.fetch)
        self._plugin_writes.forgive(inside, batch)
        return accepted

    async def _store(self, batch: Sequence[Settlement], fetch: Fetch) -> Set[UUID] | None:
        """Returns the job ids that the fence let through; None if it let all of them through."""
        settle = self._finish if batch[0].state.final else self._release
        return await settle(batch, fetch)

    async def _finish(self, batch: Sequence[Settlement], fetch: Fetch) -> Set[UUID] | None:
        id, lease, state, _, _, failure, result, refund, crashed, meta, *_ = zip(
            *batch, strict=True
        )
        ((accepted,),) = await fetch(
            self._sql.finish,
            list(id),
            list(lease),
            _unless_all(state, State.SUCCEEDED),
            _unless_all(result, None),
            _failures(failure),
            _unless_all(refund, False),
            _unless_all(crashed, False),
            _unless_all(meta, None),
        )
        return None if accepted is None else set(accepted)

    async def _release(self, batch: Sequence[Settlement], fetch: Fetch) -> Set[UUID] | None:
        id, lease, state, _, run_at, failure, _, refund, crashed, meta, resets, *_ = zip(
            *batch, strict=True
        )
        accepted = await fetch(
            self._sql.requeue,
            list(id),
            list(lease),
            list(state),
            [_delay_s(settlement) for settlement in batch],
            list(run_at),
            _failures(failure),
            _unless_all(refund, False),
            _unless_all(crashed, False),
            _unless_all(meta, None),
            _unless_all(resets, False),
        )
        return None if len(accepted) == len(batch) else {row[0] for row in accepted}


def _batches(settlements: list[Settlement], again: Set[UUID]) -> list[list[Settlement]]:
    """Batches; those that are tried again come last, since the server may refuse them."""
    parts = [settlements]
    if again:
        first = [settlement for settlement in settlements if settlement.id not in again]
        parts = [first, [settlement for settlement in settlements if settlement.id in again]]
    return [part[at : at + BATCH] for part in parts for at in range(0, len(part), BATCH)]


def _unless_all(values: tuple[T, ...], default: T) -> list[T] | None:
    """One value for each settlement; None if all equal the default, which is the usual case."""
    return None if values.count(default) == len(values) else list(values)


def _failures(failures: tuple[Failure | None, ...]) -> list[str | None] | None:
    if failures.count(None) == len(failures):
        return None
    return [None if failure is None else json.dumps(failure.as_json()) for failure in failures]


def _delay_s(settlement: Settlement) -> float | None:
    if settlement.state is not State.SCHEDULED or isinstance(settlement.run_at, datetime):
        return None
    return settlement.delay_s or 0.0


def _failed(settlement: Settlement, error: StatementFailed) -> Settlement:
    """The settlement that replaces one that the server rejects."""
    failure = Failure.named(
        "chancy.errors.StatementFailed",
        f"the settlement as {settlement.state.label} could not be stored: {error}",
    )
    return Settlement(settlement.id, settlement.lease, State.FAILED, failure=failure)

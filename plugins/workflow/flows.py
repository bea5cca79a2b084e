"""What is done with workflows: pushed, looked at, signalled, cancelled, retried."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.values import Cancellation
from chancy.errors import BrokerUnavailable, ConfigurationError, PushError, StatementFailed
from chancy.job.definition import QueuedJob
from chancy.plugins.workflow.ends import StepOutcome, StepRef, advancing, refused
from chancy.plugins.workflow.payload import written
from chancy.plugins.workflow.preparation import Prepared
from chancy.plugins.workflow.record import (
    StepRecord,
    WorkflowProgress,
    WorkflowRecord,
    WorkflowState,
    step,
    workflow,
)
from chancy.plugins.workflow.starts import Starts, start_pieces
from chancy.plugins.workflow.store import statement, store_of
from chancy.postgres.within import fetch_within, fetch_within_sync
from chancy.results.reference import checked
from chancy.serialization import codec
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD
from chancy.serialization.signature import Signature
from chancy.states import State

logger = logging.getLogger("chancy.workflows")

#: The most workflows that `find` gives, and steps of one statement.
MAX_FOUND = 1_000
PAGE = 5_000
#: Jobs that one call of the broker cancels, and rounds of looking for more.
_BATCH, _ROUNDS = 500, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFilter:
    """Which workflows: every given condition must hold. Newest first, by id.

    :param before: only those with a smaller id than this: the last of the page before.
    :param limit: 1 to 1,000.
    """

    ids: Sequence[UUID] | None = None
    name: str | None = None
    states: Iterable[WorkflowState] = ()
    before: UUID | None = None
    limit: int = 50


class WorkflowCalls:
    """The workflows of one application.

    :param max_payload: bytes that what comes with a signal may take.
    :raises ConfigurationError: its broker keeps no tables.
    """

    def __init__(self, broker: Broker, max_payload: int = DEFAULT_MAX_PAYLOAD) -> None:
        self._broker = broker
        self._max_payload = max_payload
        self._store = store_of(broker)

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def push(self, prepared: Prepared, within: object | None) -> None:
        """Store a workflow; one of its id that is there stays as it is."""
        sql, parameters = pushing(self._store.schema, prepared)
        if within is None:
            await self._store.fetch(sql, *parameters)
        else:
            await fetch_within(within, sql, *parameters)

    async def find(self, wanted: WorkflowFilter) -> list[WorkflowRecord]:
        if not 1 <= wanted.limit <= MAX_FOUND:
            raise ConfigurationError(f"limit={wanted.limit} must be from 1 to {MAX_FOUND:,}")
        states = [int(one) for one in wanted.states]
        rows = await self._fetch(
            "find",
            None if wanted.ids is None else [checked(one, "workflow") for one in wanted.ids],
            wanted.name,
            states or None,
            wanted.before,
            wanted.limit,
        )
        return [workflow(row) for row in rows]

    async def get(self, id: UUID) -> WorkflowRecord | None:
        found = await self.find(WorkflowFilter(ids=[id], limit=1))
        return found[0] if found else None

    async def steps(self, id: UUID) -> list[StepRecord]:
        """The steps in the order in which they were added."""
        found = await self.get(id)
        if found is None:
            return []
        steps: list[StepRecord] = []
        place = -1
        while True:
            rows = await self._fetch("show", id, place, PAGE)
            there = await self._elsewhere([row[8] for row in rows if row[-1]])
            steps += [step(row, found.state, there) for row in rows]
            if len(rows) < PAGE:
                return steps
            place = rows[-1][1]

    async def _elsewhere(self, jobs: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        """Jobs that another broker keeps, as far as it can be asked."""
        try:
            return await self._broker.get(jobs) if jobs else {}
        except BrokerUnavailable as error:
            logger.warning("workflow_steps_unknown jobs=%d error=%s", len(jobs), error)
            return {}

    async def progress(self, id: UUID) -> WorkflowProgress | None:
        counts: Mapping[int, int] = dict(await self._fetch("progress", id))  # type: ignore[arg-type]
        if not counts:
            return None
        return WorkflowProgress(
            total=sum(counts.values()),
            succeeded=counts.get(4, 0),
            failed=counts.get(5, 0),
            cancelled=counts.get(6, 0),
            ignored=counts.get(7, 0),
        )

    async def results(self, id: UUID, signature: Any) -> Any:
        """What the last steps gave: that of the one, or of each by its name."""
        found: dict[str, Any] = {}
        for name, func, text in await self._fetch("results", id):
            value = None if text is None else codec.decode(text)
            known: Signature | None = signature(func) if func is not None else None
            found[name] = value if known is None or value is None else known.read_result(value)
        return next(iter(found.values())) if len(found) == 1 else found

    async def signal(self, id: UUID, name: str, payload: Any, within: object | None) -> str:
        """Give a signal; says what became of it, see ``workflows_signal``."""
        sql, *parameters = self._signalling(id, name, payload)
        if within is not None:
            rows = await fetch_within(within, sql, *parameters)
        else:
            rows = list(await self._store.fetch(sql, *parameters))
        return str(rows[0][0])

    def signal_sync(self, id: UUID, name: str, payload: Any, within: object) -> str:
        """The same in a transaction of blocking code."""
        sql, *parameters = self._signalling(id, name, payload)
        return str(fetch_within_sync(within, sql, *parameters)[0][0])

    def _signalling(self, id: UUID, name: str, payload: object) -> tuple[str, UUID, str, str]:
        what = f"what comes with the signal {name!r}"
        text = written(payload, what, limit=self._max_payload)
        return statement("signal", self._store.schema), id, name, text

    async def retry(self, id: UUID, name: str | None) -> int | None:
        ((count,),) = await self._fetch("retry", id, name)
        return None if count is None else int(count)

    async def cancel(
        self, id: UUID, why: str = "cancelled", *, waiting: tuple[str, int] | None = None
    ) -> bool:
        """End a workflow: what runs is asked to stop, and the rest never begins. False: there is
        none, or it has ended in another way.

        :param waiting: a step and its run: only if that waits for its signal, and its time is up.
        """
        name, run = waiting or (None, None)
        asked: set[UUID] = set()
        for _ in range(_ROUNDS):
            found = await self._fetch("cancel", id, why, name, run)
            rows = [row for row in found if row[2] not in asked]
            if not rows:
                break
            for at in range(0, len(rows), _BATCH):
                await self._cancel(id, rows[at : at + _BATCH])
            asked.update(row[2] for row in rows)
        became = await self.get(id)
        return became is not None and became.state is WorkflowState.CANCELLED

    async def _cancel(self, id: UUID, rows: Sequence[Sequence[Any]]) -> None:
        became = await self._broker.cancel([row[2] for row in rows])
        ends = [
            StepOutcome(StepRef(id, name, run, False), job, int(State.CANCELLED), None, None, None)
            for name, run, job in sorted(rows, key=_name)
            if became.get(job) is Cancellation.CANCELLED
        ]
        if ends:
            await self.advance(ends)

    async def advance(
        self, ends: Sequence[StepOutcome], *, alone: bool = True, apart: bool = False
    ) -> None:
        """Take ends that no settlement has told, and start what they let go on, piece by piece.

        :param alone: so that no step of the workflows ends meanwhile.
        :param apart: start none of it in the same transaction: what the server refuses to start
            fails by itself then.
        """
        most = 0 if apart else Starts.most
        sql, *parameters = advancing(self._store.schema, ends, alone=alone, most=most)
        ((_, left),) = await self._store.fetch(sql, *parameters)
        while left > 0:
            started = await start_pieces(self._store)
            if not started:  # somebody else has taken them
                break
            left -= started

    async def lose(self, losses: Sequence[StepOutcome]) -> int:
        """Fail steps that were seen without a job, those that have none yet; gives how many."""
        ((count,),) = await self._fetch(
            "lose",
            [one.place.workflow for one in losses],
            [one.place.step for one in losses],
            [one.place.run for one in losses],
            [one.error for one in losses],
        )
        if count:
            await start_pieces(self._store)
        return int(count)

    async def advance_each(self, ends: Sequence[StepOutcome], *, alone: bool = True) -> None:
        """Take ends that were settled already. One that Postgres cannot store is a failure; a step
        behind it that cannot be pushed is one of that step."""
        try:
            await self.advance(ends, alone=alone)
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(ends) > 1:
                middle = len(ends) // 2
                await self.advance_each(ends[:middle], alone=alone)
                await self.advance_each(ends[middle:], alone=alone)
                return
            await self._advance_apart(ends[0])

    async def _advance_apart(self, end: StepOutcome) -> None:
        try:
            await self.advance([end], apart=True)
        except StatementFailed as error:
            if error.retryable:
                raise
            logger.error("workflow_step_refused job=%s error=%s", end.job, error)
            failed = end._replace(
                state=int(State.FAILED), result=None, error=refused(error), took_s=None
            )
            await self.advance([failed], apart=True)


def _name(row: Sequence[Any]) -> str:
    return str(row[0])


def pushing(schema: str, prepared: Prepared) -> tuple[str, list[object]]:
    """The statement that stores a workflow, with its parameters."""
    parameters: list[object] = [prepared.id, prepared.name, prepared.ends]
    return statement("push", schema), parameters + prepared.columns.parameters()


def push_within_sync(schema: str, prepared: Prepared, within: object) -> None:
    """Store a workflow in a transaction of blocking code."""
    sql, parameters = pushing(schema, prepared)
    fetch_within_sync(within, sql, *parameters)


def refusal(what: str, id: UUID, name: str) -> PushError:
    """Why a signal was not sent."""
    reasons = {
        "unknown": f"there is no workflow {id}",
        "no_step": f"workflow {id} has no step {name!r} that waits for a signal",
        "over": f"workflow {id} has ended",
        "late": f"step {name!r} has ended without it; if it is run again, it waits anew",
    }
    return PushError(f"signal {name!r} was not sent: {reasons.get(what, what)}")

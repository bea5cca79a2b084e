"""Calls about workflows: push, find, signal, cancel, retry."""

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
from chancy.plugins.workflow.outcomes import (
    StepOutcome,
    StepRef,
    advance_statement,
    refusal_failure,
)
from chancy.plugins.workflow.payload import encoded
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

#: The most workflows that `find` returns, and the most steps of one statement.
MAX_FOUND = 1_000
PAGE = 5_000
#: Jobs that one call of the broker cancels, and the most rounds of searching for more.
_BATCH, _ROUNDS = 500, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFilter:
    """A filter for workflows: all given conditions must hold. Newest first, by id.

    :param before: only workflows with a smaller id: the last id of the previous page.
    :param limit: 1 to 1,000.
    """

    ids: Sequence[UUID] | None = None
    name: str | None = None
    states: Iterable[WorkflowState] = ()
    before: UUID | None = None
    limit: int = 50


class WorkflowCalls:
    """The workflows of one application.

    :param max_payload: the largest payload of a signal, in bytes.
    :raises ConfigurationError: the broker has no SQL tables.
    """

    def __init__(self, broker: Broker, max_payload: int = DEFAULT_MAX_PAYLOAD) -> None:
        self._broker = broker
        self._max_payload = max_payload
        self._store = store_of(broker)

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def push(self, prepared: Prepared, within: object | None) -> None:
        """Store a workflow. If one with its id exists, nothing changes."""
        sql, parameters = push_statement(self._store.schema, prepared)
        if within is None:
            await self._store.fetch(sql, *parameters)
        else:
            await fetch_within(within, sql, *parameters)

    async def find(self, wanted: WorkflowFilter) -> list[WorkflowRecord]:
        if not 1 <= wanted.limit <= MAX_FOUND:
            raise ConfigurationError(f"limit={wanted.limit} must be from 1 to {MAX_FOUND:,}")
        states = [int(state) for state in wanted.states]
        rows = await self._fetch(
            "find",
            None if wanted.ids is None else [checked(id, "workflow") for id in wanted.ids],
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
        """The steps, in the order in which they were added."""
        found = await self.get(id)
        if found is None:
            return []
        steps: list[StepRecord] = []
        place = -1
        while True:
            rows = await self._fetch("show", id, place, PAGE)
            jobs = await self._other_jobs([row[8] for row in rows if row[-1]])
            steps += [step(row, found.state, jobs) for row in rows]
            if len(rows) < PAGE:
                return steps
            place = rows[-1][1]

    async def _other_jobs(self, jobs: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        """Jobs of another broker; none while it is unavailable."""
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
        """The result of the last step; a dict by name if there are several last steps."""
        found: dict[str, Any] = {}
        for name, func, text in await self._fetch("results", id):
            value = None if text is None else codec.decode(text)
            known: Signature | None = signature(func) if func is not None else None
            found[name] = value if known is None or value is None else known.read_result(value)
        return next(iter(found.values())) if len(found) == 1 else found

    async def signal(self, id: UUID, name: str, payload: Any, within: object | None) -> str:
        """Send a signal, and return what happened to it: see ``workflows_signal``."""
        sql, *parameters = self._signal_statement(id, name, payload)
        if within is not None:
            rows = await fetch_within(within, sql, *parameters)
        else:
            rows = list(await self._store.fetch(sql, *parameters))
        return str(rows[0][0])

    def signal_sync(self, id: UUID, name: str, payload: Any, within: object) -> str:
        """`signal` for blocking code, in a transaction of the caller's."""
        sql, *parameters = self._signal_statement(id, name, payload)
        return str(fetch_within_sync(within, sql, *parameters)[0][0])

    def _signal_statement(self, id: UUID, name: str, payload: object) -> tuple[str, UUID, str, str]:
        text = encoded(payload, f"the payload of signal {name!r}", limit=self._max_payload)
        return statement("signal", self._store.schema), id, name, text

    async def retry(self, id: UUID, name: str | None) -> int | None:
        ((count,),) = await self._fetch("retry", id, name)
        return None if count is None else int(count)

    async def cancel(
        self, id: UUID, why: str = "cancelled", *, waiting: tuple[str, int] | None = None
    ) -> bool:
        """Cancel a workflow: running steps are asked to stop, the others never start.

        :param waiting: a step and its run: cancel only if it waits for its signal and its timeout
            has passed.
        :returns: False if there is no such workflow, or it ended otherwise.
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
        record = await self.get(id)
        return record is not None and record.state is WorkflowState.CANCELLED

    async def _cancel(self, id: UUID, rows: Sequence[Sequence[Any]]) -> None:
        cancelled = await self._broker.cancel([row[2] for row in rows])
        outcomes = [
            StepOutcome(StepRef(id, name, run, False), job, int(State.CANCELLED), None, None, None)
            for name, run, job in sorted(rows, key=_name)
            if cancelled.get(job) is Cancellation.CANCELLED
        ]
        if outcomes:
            await self.advance(outcomes)

    async def advance(
        self, outcomes: Sequence[StepOutcome], *, alone: bool = True, apart: bool = False
    ) -> None:
        """Store outcomes that no settlement has reported, and start the enabled steps in pieces.

        :param alone: lock the workflows, so that none of their steps ends meanwhile.
        :param apart: start no step in the same transaction, so that a step that the server refuses
            to start fails on its own.
        """
        most = 0 if apart else Starts.most
        sql, *parameters = advance_statement(self._store.schema, outcomes, alone=alone, most=most)
        ((_, left),) = await self._store.fetch(sql, *parameters)
        while left > 0:
            started = await start_pieces(self._store)
            if not started:  # another process has started them
                break
            left -= started

    async def lose(self, losses: Sequence[StepOutcome]) -> int:
        """Fail steps that were found without a job and still have none; return how many."""
        ((count,),) = await self._fetch(
            "lose",
            [loss.ref.workflow for loss in losses],
            [loss.ref.step for loss in losses],
            [loss.ref.run for loss in losses],
            [loss.error for loss in losses],
        )
        if count:
            await start_pieces(self._store)
        return int(count)

    async def advance_each(self, outcomes: Sequence[StepOutcome], *, alone: bool = True) -> None:
        """Store outcomes of jobs that are settled already.

        An outcome that Postgres cannot store becomes a failure of its step; a dependent step that
        cannot be enqueued fails on its own.
        """
        try:
            await self.advance(outcomes, alone=alone)
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(outcomes) > 1:
                middle = len(outcomes) // 2
                await self.advance_each(outcomes[:middle], alone=alone)
                await self.advance_each(outcomes[middle:], alone=alone)
                return
            await self._advance_apart(outcomes[0])

    async def _advance_apart(self, outcome: StepOutcome) -> None:
        try:
            await self.advance([outcome], apart=True)
        except StatementFailed as error:
            if error.retryable:
                raise
            logger.error("workflow_step_refused job=%s error=%s", outcome.job, error)
            failed = outcome._replace(
                state=int(State.FAILED), result=None, error=refusal_failure(error), took_s=None
            )
            await self.advance([failed], apart=True)


def _name(row: Sequence[Any]) -> str:
    return str(row[0])


def push_statement(schema: str, prepared: Prepared) -> tuple[str, list[object]]:
    """The statement that stores a workflow, with its parameters."""
    parameters: list[object] = [prepared.id, prepared.name, prepared.sinks]
    return statement("push", schema), parameters + prepared.columns.parameters()


def push_within_sync(schema: str, prepared: Prepared, within: object) -> None:
    """Store a workflow from blocking code, in a transaction of the caller's."""
    sql, parameters = push_statement(schema, prepared)
    fetch_within_sync(within, sql, *parameters)


def signal_error(reason: str, id: UUID, name: str) -> PushError:
    """The error for a signal that was not sent, by the reason of ``workflows_signal``."""
    reasons = {
        "unknown": f"there is no workflow {id}",
        "no_step": f"workflow {id} has no step {name!r} that waits for a signal",
        "over": f"workflow {id} has ended",
        "late": f"step {name!r} has ended without it; if the step is retried, it waits again",
    }
    return PushError(f"signal {name!r} was not sent: {reasons.get(reason, reason)}")

"""Calls about workflows: push, find, signal, cancel, retry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.values import Cancellation
from chancy.errors import PushError, StatementFailed
from chancy.plugin.tables import from_row
from chancy.plugin.tracking.groups import CANCEL_ROUNDS, GroupCalls
from chancy.plugins.workflow.encoding import Prepared
from chancy.plugins.workflow.outcomes import (
    SQL,
    StepOutcome,
    StepRef,
    advance_statement,
    outcome_order,
    refusal_failure,
)
from chancy.plugins.workflow.payload import encoded
from chancy.plugins.workflow.record import (
    StepRecord,
    WorkflowProgress,
    WorkflowRecord,
    WorkflowState,
    step,
)
from chancy.plugins.workflow.starts import Starts, start_pieces
from chancy.postgres.within.calls import Fetch
from chancy.serialization import codec
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD
from chancy.serialization.signature import Signature
from chancy.states import State

logger = logging.getLogger("chancy.workflows")

#: The maximum number of steps of one statement.
PAGE = 5_000
#: How long a statement that stores outcomes waits for a locked workflow.
_PATIENCE = "500ms"


class WorkflowCalls(GroupCalls[WorkflowRecord, WorkflowState]):
    """The workflows of one application.

    :param max_payload: the maximum payload of a signal, in bytes.
    """

    sql, kind, states = SQL, "workflow", WorkflowState

    def __init__(self, broker: Broker, max_payload: int = DEFAULT_MAX_PAYLOAD) -> None:
        super().__init__(broker)
        self._max_payload = max_payload

    def _record(self, row: Sequence[Any]) -> WorkflowRecord:
        return from_row(WorkflowRecord, row, state=WorkflowState)

    async def push(self, prepared: Prepared, fetch: Fetch | None) -> None:
        """Store a workflow. If one with its id exists, nothing changes."""
        head = prepared.id, prepared.name, prepared.sinks
        await self._run(fetch, "push", *head, *prepared.columns.parameters())

    async def _run(self, fetch: Fetch | None, name: str, *parameters: object) -> Sequence[Any]:
        """Run a statement in a transaction of the caller, or on its own."""
        if fetch is None:
            return await self._tables.fetch(name, *parameters)
        return await fetch(SQL.statement(name, self._tables.schema), *parameters)

    async def steps(self, id: UUID) -> list[StepRecord]:
        """The steps, in the order in which they were added."""
        found = await self.get(id)
        if found is None:
            return []
        steps: list[StepRecord] = []
        place = -1
        while rows := await self._tables.fetch("show", id, place, PAGE):
            steps += [step(row, found.state) for row in rows]
            place = rows[-1][1]
        return steps

    async def progress(self, id: UUID) -> WorkflowProgress | None:
        counts: Mapping[int, int] = dict(await self._tables.fetch("progress", id))  # type: ignore[arg-type]
        if not counts:
            return None
        return WorkflowProgress(
            total=sum(counts.values()),
            succeeded=counts.get(4, 0),
            failed=counts.get(5, 0),
            cancelled=counts.get(6, 0),
            ignored=counts.get(7, 0),
        )

    async def results(self, id: UUID, signature: Any, decode: Callable[[str, Any], Any]) -> Any:
        """The result of the last step; a dict by name if there are several last steps.

        :param decode: see `Application.decode_result`.
        """
        found: dict[str, Any] = {}
        place: int | None = -1
        while place is not None:
            rows = await self._tables.fetch("results", id, place)
            place = rows[-1][0] if rows else None
            for _, name, func, text in rows:
                value = None if text is None else decode(func or "", codec.decode(text))
                known: Signature | None = signature(func) if func is not None else None
                found[name] = value if known is None or value is None else known.read_result(value)
        return next(iter(found.values())) if len(found) == 1 else found

    async def signal(
        self,
        id: UUID,
        name: str,
        payload: Any,
        fetch: Fetch | None,
        encode: Callable[[str, str, str | None], str],
    ) -> str:
        """Send a signal, and return what happened to it: see ``workflows_signal``.

        :param encode: see `Application.encode_arguments`; a signal has no function and no queue.
        """
        text = encoded(payload, f"the payload of signal {name!r}", limit=self._max_payload)
        return str((await self._run(fetch, "signal", id, name, encode("", text, None)))[0][0])

    async def retry(self, id: UUID, name: str | None) -> int | None:
        ((count,),) = await self._tables.fetch("retry", id, name)
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
        for _ in range(CANCEL_ROUNDS):
            found = await self._tables.fetch("cancel", id, why, name, run)
            rows = [row for row in found if row[2] not in asked]
            if not rows:
                break
            await self._cancel(id, rows)
            asked.update(row[2] for row in rows)
        record = await self.get(id)
        return record is not None and record.state is WorkflowState.CANCELLED

    async def _cancel(self, id: UUID, rows: Sequence[Sequence[Any]]) -> None:
        cancelled = await self.cancel_members([row[2] for row in rows])
        await self.report(
            [
                StepOutcome(
                    StepRef(id, name, run, False), job, int(State.CANCELLED), None, None, None
                )
                for name, run, job in rows
                if cancelled.get(job) is Cancellation.CANCELLED
            ]
        )

    async def advance(self, outcomes: Sequence[StepOutcome], *, apart: bool = False) -> None:
        """Store outcomes that no settlement has reported, and start the enabled steps in batches.

        The workflows are locked, so that none of their steps ends at the same time.

        :param apart: start no step in the same transaction, so that a step that the server refuses
            to start fails on its own.
        """
        most = 0 if apart else Starts.most
        sql, *parameters = advance_statement(
            self._tables.schema, outcomes, alone=True, most=most, patience=_PATIENCE
        )
        ((_, left),) = await self._tables.store.fetch(sql, *parameters)
        while left > 0:
            started = await start_pieces(self._tables)
            if not started:  # another process has started them
                break
            left -= started

    async def lose(self, losses: Sequence[StepOutcome]) -> int:
        """Fail steps that were found without a job and still have none; return how many."""
        ((_, count),) = await self._tables.fetch(
            "lose",
            [loss.ref.workflow for loss in losses],
            [loss.ref.step for loss in losses],
            [loss.ref.run for loss in losses],
            [loss.error for loss in losses],
        )
        if count:
            await start_pieces(self._tables)
        return int(count)

    async def _store(self, outcomes: Sequence[StepOutcome]) -> None:
        """Store outcomes of jobs that are settled already.

        An outcome that Postgres cannot store becomes a failure of its step; a dependent step that
        cannot be enqueued fails on its own.
        """
        try:
            await self.advance(sorted(outcomes, key=outcome_order))
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(outcomes) > 1:
                middle = len(outcomes) // 2
                await self._store(outcomes[:middle])
                await self._store(outcomes[middle:])
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


def signal_error(reason: str, id: UUID, name: str) -> PushError:
    """The error for a signal that was not sent, by the reason of ``workflows_signal``."""
    reasons = {
        "unknown": f"there is no workflow {id}",
        "no_step": f"workflow {id} has no step {name!r} that waits for a signal",
        "over": f"workflow {id} has ended",
        "late": f"step {name!r} has ended without it; if the step is retried, it waits again",
    }
    return PushError(f"signal {name!r} was not sent: {reasons.get(reason, reason)}")

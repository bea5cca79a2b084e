"""Outcomes of steps whose jobs are in another broker and were not reported yet."""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.errors import BrokerUnavailable, InvalidArguments, PayloadTooLarge
from chancy.job.definition import QueuedJob
from chancy.plugin.tracking import BATCH, OutcomeSearch
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import StepOutcome, StepRef, lost_outcome, outcome_of
from chancy.plugins.workflow.record import WorkflowState
from chancy.plugins.workflow.store import statement, store_of
from chancy.serialization.codec import encode
from chancy.states import State

logger = logging.getLogger("chancy.workflows")

#: Steps of one turn: ten Redis scripts, each of which blocks the server for 3 ms.
PAGE_SIZE = 2_500


class UntrackedStep(NamedTuple):
    """A row of ``sql/away.sql``.

    :param flow: the state of the workflow; None if it was purged.
    :param open: whether the step has not ended in this run.
    """

    workflow: UUID
    job: UUID
    name: str
    run: int
    flow: int | None
    open: bool

    @property
    def ref(self) -> StepRef:
        return StepRef(self.workflow, self.name, self.run, False)


class StepTracking:
    """Looks up jobs in the other broker, one part of them each turn, and then starts over."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._store = store_of(broker)
        self._calls = WorkflowCalls(broker)
        self._search: OutcomeSearch[StepOutcome] = OutcomeSearch(broker, self._unsent, clock)

    async def turn(self) -> int:
        """Report the next part of the steps, and stop jobs of cancelled workflows.

        A step is reported if its job had ended in the previous turn, too, or has been missing for
        15 s. Does nothing while the other broker is unavailable, or if there is none.

        :returns: the number of outcomes reported.
        """
        if not self._search.possible():
            return 0
        rows = [
            UntrackedStep(*row) for row in await self._fetch("away", *self._search.after, PAGE_SIZE)
        ]
        try:
            reported = await self._report(rows)
        except BrokerUnavailable as error:
            logger.warning("workflow_steps_unknown jobs=%d error=%s", len(rows), error)
            return 0
        full = len(rows) == PAGE_SIZE
        self._search.go_on((rows[-1].workflow, rows[-1].job) if full else None)
        return reported

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def _report(self, rows: Sequence[UntrackedStep]) -> int:
        ended = [row for row in rows if not row.open]
        if ended:
            ids = [row.workflow for row in ended], [row.job for row in ended]
            await self._fetch("back", *ids)
        waiting = {row.job: row for row in rows if row.open}
        found = await self._search.find(list(waiting))
        outcomes = self._search.twice(
            [outcome for id, job in found.items() if (outcome := _outcome(waiting[id], job))],
            {id for id, job in found.items() if job is None},
        )
        for at in range(0, len(outcomes), BATCH):
            await self._calls.advance_each(outcomes[at : at + BATCH])
        stopped = [
            id
            for id, job in found.items()
            if job is not None and not job.state.final
            if waiting[id].flow == WorkflowState.CANCELLED and job.stop_asked_at is None
        ]
        if stopped:
            await self._broker.cancel(stopped)
        return len(outcomes)

    async def _unsent(self, ids: list[UUID]) -> Collection[UUID]:
        return {row[0] for row in await self._fetch("unsent", ids)}


def _outcome(row: UntrackedStep, job: QueuedJob | None) -> StepOutcome | None:
    """The outcome of a step from its job, which may be missing; None while it goes on."""
    if job is None:
        if row.flow == WorkflowState.CANCELLED:
            return outcome_of(row.ref, row.job, int(State.CANCELLED), None, None, None)
        return lost_outcome(row.ref, row.job)
    if not job.state.final:
        return None
    try:
        result = _result(job)
    except (InvalidArguments, PayloadTooLarge) as error:
        logger.error("workflow_step_refused job=%s error=%s", row.job, error)
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        return outcome_of(row.ref, row.job, int(State.FAILED), None, str(error), kind)
    last = job.errors[-1] if job.errors else {}
    types = last.get("types") or ("",)
    message = str(last.get("message", ""))
    return outcome_of(row.ref, row.job, int(job.state), result, message, str(types[0]))


def _result(job: QueuedJob) -> str | None:
    """The result as JSON text. Its size was checked when the job returned it."""
    if job.result is None:
        return None
    return encode(job.result, what=f"the result of {job.func}", limit=sys.maxsize)

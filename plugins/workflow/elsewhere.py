"""Steps whose jobs another broker keeps: what has become of those whose end nobody has told."""

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
from chancy.plugins.workflow.ends import StepOutcome, StepRef, end_of, gone
from chancy.plugins.workflow.flows import WorkflowCalls
from chancy.plugins.workflow.record import WorkflowState
from chancy.plugins.workflow.store import statement, store_of
from chancy.serialization.codec import encode
from chancy.states import State

logger = logging.getLogger("chancy.workflows")

#: Steps of one turn: ten scripts of Redis, each of which holds up everybody else for 3 ms.
LOOKED_AT = 2_500


class UntrackedStep(NamedTuple):
    """A row of ``sql/away.sql``.

    :param flow: the state of the workflow; None: it is forgotten.
    :param open: whether the step has not ended in this run.
    """

    workflow: UUID
    job: UUID
    name: str
    run: int
    flow: int | None
    open: bool

    @property
    def place(self) -> StepRef:
        return StepRef(self.workflow, self.name, self.run, False)


class StepTracking:
    """Walks over them, some in each turn, and begins at the front when it has come to the end."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._store = store_of(broker)
        self._flows = WorkflowCalls(broker)
        self._search: OutcomeSearch[StepOutcome] = OutcomeSearch(broker, self._unsent, clock)

    async def turn(self) -> int:
        """Tell of those that had ended in the turn before, too, or are gone for 15 s, and stop
        those of cancelled workflows; gives how many ends that told. Nothing while the other broker
        is away, or where it is not supplied."""
        if not self._search.possible():
            return 0
        rows = [
            UntrackedStep(*row) for row in await self._fetch("away", *self._search.after, LOOKED_AT)
        ]
        try:
            told = await self._look(rows)
        except BrokerUnavailable as error:
            logger.warning("workflow_steps_unknown jobs=%d error=%s", len(rows), error)
            return 0
        full = len(rows) == LOOKED_AT
        self._search.go_on((rows[-1].workflow, rows[-1].job) if full else None)
        return told

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def _look(self, rows: Sequence[UntrackedStep]) -> int:
        over = [row for row in rows if not row.open]
        if over:
            ids = [row.workflow for row in over], [row.job for row in over]
            await self._fetch("back", *ids)
        waiting = {row.job: row for row in rows if row.open}
        found = await self._search.find(list(waiting))
        ends = self._search.twice(
            [end for id, job in found.items() if (end := _end(waiting[id], job))],
            {id for id, job in found.items() if job is None},
        )
        for at in range(0, len(ends), BATCH):
            await self._flows.advance_each(ends[at : at + BATCH])
        stopped = [
            id
            for id, job in found.items()
            if job is not None and not job.state.final
            if waiting[id].flow == WorkflowState.CANCELLED and job.stop_asked_at is None
        ]
        if stopped:
            await self._broker.cancel(stopped)
        return len(ends)

    async def _unsent(self, ids: list[UUID]) -> Collection[UUID]:
        return {row[0] for row in await self._fetch("unsent", ids)}


def _end(row: UntrackedStep, job: QueuedJob | None) -> StepOutcome | None:
    """How a step has ended whose job is there, or gone."""
    if job is None:
        if row.flow == WorkflowState.CANCELLED:
            return end_of(row.place, row.job, int(State.CANCELLED), None, None, None)
        return gone(row.place, row.job)
    if not job.state.final:
        return None
    try:
        result = _result(job)
    except (InvalidArguments, PayloadTooLarge) as error:
        logger.error("workflow_step_refused job=%s error=%s", row.job, error)
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        return end_of(row.place, row.job, int(State.FAILED), None, str(error), kind)
    last = job.errors[-1] if job.errors else {}
    types = last.get("types") or ("",)
    message = str(last.get("message", ""))
    return end_of(row.place, row.job, int(job.state), result, message, str(types[0]))


def _result(job: QueuedJob) -> str | None:
    """Its JSON text. That it was not too large was looked at when it was returned."""
    if job.result is None:
        return None
    return encode(job.result, what=f"the result of {job.func}", limit=sys.maxsize)

"""What repairs and bounds workflows: the service beside a worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.plugin.tracking import MissingJobs
from chancy.plugins.workflow import starts
from chancy.plugins.workflow.elsewhere import StepTracking
from chancy.plugins.workflow.ends import StepOutcome, StepOutcomes, StepRef, end_of, gone, order
from chancy.plugins.workflow.flows import WorkflowCalls
from chancy.plugins.workflow.replays import WorkflowReplays
from chancy.plugins.workflow.store import statement, store_of
from chancy.states import State

logger = logging.getLogger("chancy.workflows")

#: Steps that one statement looks at, and statements of one turn: 50,000 steps.
LOOKED_AT, LOOKS = 2_500, 20
#: Seconds after its end for which a workflow that did not succeed is looked at.
WINDOW_S = 86_400.0
#: Seconds after which an attempt that was seen to end is asked after.
PATIENCE_S = 1.0
#: And seconds after which one is forgotten whose job is not here: the sweep finds its end.
ELSEWHERE_S = 60.0
#: Attempts that the worker asks after at once: where settlements are seconds behind, most are about
#: to be told.
ASKED = 1_000
#: Steps of one statement that takes ends, or deletes.
BATCH = 500
#: Statements of one turn that delete, of each kind: 50,000 workflows.
_MOST_BATCHES = 100
#: Workflows of one turn that end, or begin to undo.
_TURNED = 100

_RUNNING = int(State.RUNNING)
#: One row of ``sql/missed.sql`` by position.
_FLOW, _LIVE, _MISSED, _STATE, _LOST = 4, 5, 6, 7, 11


class WorkflowSweep:
    """Repairs what a settlement could not tell.

    :param notes: the attempts that this process has seen end.
    :param keep_days: days for which workflows that have ended are kept; None: for ever.
    """

    def __init__(
        self, broker: Broker, clock: Clock, notes: StepOutcomes, *, keep_days: float | None
    ) -> None:
        self._broker = broker
        self._store = store_of(broker)
        self._flows = WorkflowCalls(broker)
        self._clock = clock
        self._notes = notes
        self._keep_days = keep_days
        self._elsewhere = StepTracking(broker, clock)
        self._replays = WorkflowReplays(broker)
        self._absences = MissingJobs(clock)
        self._after: tuple[UUID | None, str | None] = (None, None)
        self._turned: UUID | None = None
        #: Whether the last turn has found more pieces than it starts.
        self.more_pieces = False

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def ask(self) -> int:
        """Look at the attempts that ended here a while ago and were not settled in the way that the
        hook hears of, as those that completed in a transaction of their own; gives how many
        steps have ended by it. Those of other brokers, of which nothing is known here, may yet be
        settled there."""
        now = self._clock.monotonic()
        waiting = self._notes.older(now - PATIENCE_S, ASKED)
        ended = 0
        ids = list(waiting)
        for at in range(0, len(ids), BATCH):
            some = ids[at : at + BATCH]
            rows = {row[0]: row for row in await self._fetch("settled", some)}
            over: list[UUID] = []
            ends: list[StepOutcome] = []
            for id in some:
                row, end = rows.get(id), self._notes.untold(id)
                if row is not None and State(row[1]).final:
                    ends.append(end_of(waiting[id].place, *row))
                elif row is None and end is not None:
                    ends.append(end)
                # One that runs, as far as the table knows, is about to be settled from here.
                elif waiting[id].at >= now - ELSEWHERE_S if row is None else row[1] == _RUNNING:
                    continue
                over.append(id)
            if ends:
                await self._flows.advance_each(sorted(ends, key=order))
            self._notes.forget(over)
            ended += len(ends)
        return ended

    async def turn(self) -> int:
        """Start what was left to be started, and look at the next steps that should have a job and
        have none, or have it with another broker; gives how many ends that told. Begins at the
        front again when it has come to the end."""
        self.more_pieces = await starts.start_pieces(self._store) == starts.MOST_PIECES
        repaired = 0
        for _ in range(LOOKS):
            rows = await self._fetch("missed", *self._after, LOOKED_AT, WINDOW_S)
            repaired += await self._repair([row for row in rows if row[_MISSED]])
            await self._stop([row[3] for row in rows if row[_FLOW] == 6 and row[_LIVE]])
            place = (rows[-1][0], rows[-1][1]) if rows else (None, None)
            over = not rows or place == self._after
            self._after = (None, None) if over else place
            if over:
                self._absences.walked()
                break
        repaired += await self._elsewhere.turn() + await self._replays.turn()
        turned = await self._fetch("turn", _TURNED, self._turned)
        self._turned = turned[-1][0] if len(turned) == _TURNED else None
        if any(left for _, left in turned):
            await starts.start_pieces(self._store)
        if repaired:
            logger.warning("workflow_steps_repaired count=%d", repaired)
        return repaired

    async def _repair(self, rows: Sequence[Sequence[Any]]) -> int:
        """Tell of steps that have ended. One whose job is nowhere may be about to be told where it
        ran."""
        ends: list[StepOutcome] = []
        losses: list[StepOutcome] = []
        gone_for_long = self._absences.lasting(
            [row[3] for row in rows if row[_STATE] is None and row[_LOST]]
        )
        for workflow, name, run, job, _, _, _, state, result, message, kind, lost in rows:
            place = StepRef(workflow, name, run, False)
            if state is not None:
                ends.append(end_of(place, job, state, result, message, kind))
            elif lost and job in gone_for_long:
                losses.append(gone(place, job))
        for at in range(0, len(ends), BATCH):
            await self._flows.advance_each(ends[at : at + BATCH])
        repaired = len(ends)
        for at in range(0, len(losses), BATCH):
            repaired += await self._flows.lose(losses[at : at + BATCH])
        return repaired

    async def _stop(self, jobs: Sequence[UUID]) -> None:
        """Ask the steps of cancelled workflows to stop that began in the moment of cancelling."""
        for at in range(0, len(jobs), BATCH):
            await self._broker.cancel(jobs[at : at + BATCH])

    async def retain(self) -> int:
        """Forget workflows that are too old; gives how many."""
        if self._keep_days is None:
            return 0
        age_s = self._keep_days * 86_400.0
        forgotten = 0
        # By turns, as both look at the oldest ones only.
        for _ in range(_MOST_BATCHES):
            ((steps,),) = await self._fetch("forget_steps", age_s, 10 * BATCH)
            ((count,),) = await self._fetch("forget", age_s, BATCH)
            forgotten += count
            if not steps and not count:
                break
        if forgotten:
            logger.info("workflows_forgotten count=%d", forgotten)
        return forgotten

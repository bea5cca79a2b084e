"""The sweep of workflows: repairs unreported outcomes, and deletes old workflows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.errors import StatementFailed
from chancy.plugin.tracking.groups import concerns_some
from chancy.plugin.tracking.recorded import RecordedOutcomes
from chancy.plugin.tracking.sweep import GroupSweep, Row
from chancy.plugins.workflow import starts
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import (
    RecordedAttempt,
    StepOutcome,
    StepRef,
    lost_outcome,
    outcome_of,
)
from chancy.plugins.workflow.record import WorkflowState
from chancy.plugins.workflow.timers import SignalTimeouts
from chancy.states import State

logger = logging.getLogger("chancy.workflows")

#: Seconds after its end during which a workflow that did not succeed is scanned.
WINDOW_S = 86_400.0
#: Workflows that one turn ends, or starts to undo.
_TURNED = 100

#: Positions in a row of ``sql/missed.sql``.
_FLOW, _LIVE, _MISSED, _STATE, _LOST = 4, 5, 6, 7, 11


class WorkflowSweep(GroupSweep[RecordedAttempt, StepOutcome]):
    """Reports outcomes that settlements did not report, and starts steps that are left.

    :param left: starts the pieces that a turn has left.
    """

    calls = WorkflowCalls
    groups = "workflows"
    forget_members = "forget_steps"
    #: 50,000 steps.
    page, max_pages = 2_500, 20
    replays_page = 2_500

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        outcomes: RecordedOutcomes[RecordedAttempt, StepOutcome],
        *,
        keep_days: float | None,
        left: starts.Starts | None = None,
    ) -> None:
        super().__init__(broker, clock, outcomes, keep_days=keep_days)
        self._timers = SignalTimeouts(broker)
        self._left = left
        self._turned: UUID | None = None

    def _settled(self, ref: RecordedAttempt, row: Row) -> StepOutcome:
        id, state, result, message, kind = row
        return outcome_of(ref.ref, id, state, result, message, kind)

    async def ring(self) -> None:
        await self._timers.turn()

    async def turn(self) -> int:
        """Start pieces that are left; then `GroupSweep.turn`; then end workflows that fail."""
        if await starts.start_pieces(self._tables) == starts.MOST_PIECES and self._left is not None:
            self._left.add(1)  # started by the task beside the sweep
        repaired = await super().turn()
        ids = [id for (id,) in await self._tables.fetch("turning", _TURNED, self._turned)]
        self._turned = ids[-1] if len(ids) == _TURNED else None
        if ids and await self._end(ids):
            await starts.start_pieces(self._tables)
        return repaired

    async def _end(self, ids: Sequence[UUID]) -> bool:
        """End workflows that fail, or start to undo them; return whether there are pieces to start.
        If the server refuses one, each by itself."""
        try:
            return any(left for _, left in await self._tables.fetch("turn", ids))
        except StatementFailed as error:
            if len(ids) > 1 and concerns_some(error):
                return any([await self._end([id]) for id in ids])
            self._calls.postpone(ids[0], error)
            return False

    async def _missed(self, after: Row) -> Sequence[Row]:
        return await self._tables.fetch("missed", *after, self.page, WINDOW_S)

    async def _repair(self, rows: Sequence[Row]) -> int:
        """The outcome of a missing job may be about to be reported by its worker, so it counts as
        lost only after a while."""
        outcomes: list[StepOutcome] = []
        losses: list[StepOutcome] = []
        missed = [row for row in rows if row[_MISSED]]
        gone = self._gone([row[3] for row in missed if row[_STATE] is None and row[_LOST]])
        for workflow, name, run, job, _, _, _, state, result, message, kind, lost in missed:
            ref = StepRef(workflow, name, run, False)
            if state is not None:
                outcomes.append(outcome_of(ref, job, state, result, message, kind))
            elif lost and job in gone:
                losses.append(lost_outcome(ref, job))
        left = await self._calls.report(outcomes)
        lost = 0

        async def lose(some: Sequence[StepOutcome]) -> None:
            nonlocal lost
            lost += await WorkflowCalls(self._broker).lose(some)

        await self._calls.apart(lose, losses)
        # Jobs that started while their workflow was being cancelled.
        cancelled = WorkflowState.CANCELLED
        await self._stop([row[3] for row in rows if row[_FLOW] == cancelled and row[_LIVE]])
        return len(outcomes) - len(left) + lost

    def _replay(self, row: Row) -> StepOutcome | None:
        workflow, name, run, job, result = row
        if job is None:
            return None
        ref = StepRef(workflow, name, run, True)
        return outcome_of(ref, job, int(State.SUCCEEDED), result, None, None)

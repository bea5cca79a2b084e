"""The sweep of workflows: repairs unreported outcomes, and deletes old workflows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.plugin.tracking import MissingJobs
from chancy.plugins.workflow import starts
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import (
    StepOutcome,
    StepOutcomes,
    StepRef,
    lost_outcome,
    outcome_of,
    outcome_order,
)
from chancy.plugins.workflow.store import statement, store_of
from chancy.plugins.workflow.tracking import StepTracking
from chancy.states import State

logger = logging.getLogger("chancy.workflows")

#: Steps that one statement scans, and the most statements of one turn: 50,000 steps.
PAGE_SIZE, MAX_PAGES = 2_500, 20
#: Steps of failed workflows that one turn scans for replays.
REPLAYS_PAGE = 2_500
#: Seconds after its end during which a workflow that did not succeed is scanned.
WINDOW_S = 86_400.0
#: Seconds after which a recorded attempt is checked.
PATIENCE_S = 1.0
#: Seconds after which a recorded attempt is dropped whose job is not in Postgres: the sweep finds
#: its outcome.
ELSEWHERE_S = 60.0
#: Recorded attempts that are checked at once: where settlements lag by seconds, most of them are
#: about to be reported.
MAX_CHECKED = 1_000
#: Steps of one statement that stores outcomes, or deletes.
BATCH = 500
#: Statements of one turn that delete, of each kind: 50,000 workflows.
_MOST_BATCHES = 100
#: Workflows that one turn ends, or starts to undo.
_TURNED = 100

_RUNNING = int(State.RUNNING)
#: Positions in a row of ``sql/missed.sql``.
_FLOW, _LIVE, _MISSED, _STATE, _LOST = 4, 5, 6, 7, 11


class WorkflowSweep:
    """Reports outcomes that settlements did not report.

    :param outcomes: the attempts that have ended in this process.
    :param keep_days: days for which ended workflows are kept; None: for ever.
    """

    def __init__(
        self, broker: Broker, clock: Clock, outcomes: StepOutcomes, *, keep_days: float | None
    ) -> None:
        self._broker = broker
        self._store = store_of(broker)
        self._calls = WorkflowCalls(broker)
        self._clock = clock
        self._outcomes = outcomes
        self._keep_days = keep_days
        self._tracking = StepTracking(broker, clock)
        self._replays = WorkflowReplays(broker)
        self._missing = MissingJobs(clock)
        self._after: tuple[UUID | None, str | None] = (None, None)
        self._turned: UUID | None = None
        #: Whether the last turn has found more pieces than it starts.
        self.more_pieces = False

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def check_recorded(self) -> int:
        """Check recorded attempts that were not settled through the hook, such as jobs completed in
        a transaction of their own. Attempts whose job is not in Postgres may still be settled by
        another broker.

        :returns: the number of outcomes reported.
        """
        now = self._clock.monotonic()
        waiting = self._outcomes.older(now - PATIENCE_S, MAX_CHECKED)
        reported = 0
        ids = list(waiting)
        for at in range(0, len(ids), BATCH):
            some = ids[at : at + BATCH]
            rows = {row[0]: row for row in await self._fetch("settled", some)}
            checked: list[UUID] = []
            outcomes: list[StepOutcome] = []
            for id in some:
                row, outcome = rows.get(id), self._outcomes.unreported(id)
                if row is not None and State(row[1]).final:
                    outcomes.append(outcome_of(waiting[id].ref, *row))
                elif row is None and outcome is not None:
                    outcomes.append(outcome)
                # A job that is running in the table is about to be settled by this process.
                elif waiting[id].at >= now - ELSEWHERE_S if row is None else row[1] == _RUNNING:
                    continue
                checked.append(id)
            if outcomes:
                await self._calls.advance_each(sorted(outcomes, key=outcome_order))
            self._outcomes.discard(checked)
            reported += len(outcomes)
        return reported

    async def turn(self) -> int:
        """Start pieces that are left, and repair the next steps that should have a job in Postgres
        and have none; after the last step, start over.

        :returns: the number of outcomes reported.
        """
        self.more_pieces = await starts.start_pieces(self._store) == starts.MOST_PIECES
        repaired = 0
        for _ in range(MAX_PAGES):
            rows = await self._fetch("missed", *self._after, PAGE_SIZE, WINDOW_S)
            repaired += await self._repair([row for row in rows if row[_MISSED]])
            await self._stop([row[3] for row in rows if row[_FLOW] == 6 and row[_LIVE]])
            last = (rows[-1][0], rows[-1][1]) if rows else (None, None)
            over = not rows or last == self._after
            self._after = (None, None) if over else last
            if over:
                self._missing.walked()
                break
        repaired += await self._tracking.turn() + await self._replays.turn()
        turned = await self._fetch("turn", _TURNED, self._turned)
        self._turned = turned[-1][0] if len(turned) == _TURNED else None
        if any(left for _, left in turned):
            await starts.start_pieces(self._store)
        if repaired:
            logger.warning("workflow_steps_repaired count=%d", repaired)
        return repaired

    async def _repair(self, rows: Sequence[Sequence[Any]]) -> int:
        """Report steps whose jobs have ended. The outcome of a missing job may be about to be
        reported by its worker, so it counts as lost only after a while."""
        outcomes: list[StepOutcome] = []
        losses: list[StepOutcome] = []
        long_missing = self._missing.lasting(
            [row[3] for row in rows if row[_STATE] is None and row[_LOST]]
        )
        for workflow, name, run, job, _, _, _, state, result, message, kind, lost in rows:
            ref = StepRef(workflow, name, run, False)
            if state is not None:
                outcomes.append(outcome_of(ref, job, state, result, message, kind))
            elif lost and job in long_missing:
                losses.append(lost_outcome(ref, job))
        for at in range(0, len(outcomes), BATCH):
            await self._calls.advance_each(outcomes[at : at + BATCH])
        repaired = len(outcomes)
        for at in range(0, len(losses), BATCH):
            repaired += await self._calls.lose(losses[at : at + BATCH])
        return repaired

    async def _stop(self, jobs: Sequence[UUID]) -> None:
        """Ask jobs to stop that started while their workflow was being cancelled."""
        for at in range(0, len(jobs), BATCH):
            await self._broker.cancel(jobs[at : at + BATCH])

    async def purge(self) -> int:
        """Delete workflows that ended over ``keep_days`` ago, and return how many."""
        if self._keep_days is None:
            return 0
        age_s = self._keep_days * 86_400.0
        purged = 0
        # Alternately, as both statements scan the oldest workflows only.
        for _ in range(_MOST_BATCHES):
            ((steps,),) = await self._fetch("forget_steps", age_s, 10 * BATCH)
            ((count,),) = await self._fetch("forget", age_s, BATCH)
            purged += count
            if not steps and not count:
                break
        if purged:
            logger.info("workflows_forgotten count=%d", purged)
        return purged


class WorkflowReplays:
    """Reports succeeded replays of dead letters to their failed workflows, some in each turn.

    A replay is a job of its own, and no table of workflows refers to it before it has ended. If
    the hook fails to report it and the worker dies, only its dead letter refers to it.
    """

    def __init__(self, broker: Broker) -> None:
        self._store = store_of(broker)
        self._calls = WorkflowCalls(broker)
        self._has_dead_letters = False
        self._after: tuple[UUID | None, str | None] = (None, None)

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def turn(self) -> int:
        """Report the next replays that have succeeded, and return how many. A replay in a queue
        without history cannot be found."""
        if not self._has_dead_letters:
            ((self._has_dead_letters,),) = await self._fetch("letters")
        if not self._has_dead_letters:
            return 0
        rows = await self._fetch("replayed", *self._after, REPLAYS_PAGE)
        outcomes = [
            outcome_of(
                StepRef(workflow, name, run, True), job, int(State.SUCCEEDED), result, None, None
            )
            for workflow, name, run, job, result in rows
            if job is not None
        ]
        if outcomes:
            await self._calls.advance_each(outcomes)
        self._after = (rows[-1][0], rows[-1][1]) if len(rows) == REPLAYS_PAGE else (None, None)
        return len(outcomes)

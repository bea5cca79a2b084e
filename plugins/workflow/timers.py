"""Timeouts of signals: steps whose signal has not arrived in time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.errors import StatementFailed
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import SQL, StepOutcome, StepRef, outcome_of
from chancy.states import State

logger = logging.getLogger("chancy.workflows")

#: Timers of one statement, and the most statements of one turn.
BATCH, _MOST_BATCHES = 500, 20


class SignalTimeout(NamedTuple):
    """A row of ``sql/due.sql``.

    :param job: None if its step has ended, or was retried since.
    :param default: JSON text.
    :param going: whether the workflow goes on. Otherwise its step waits for nothing, and waits
        again when the workflow is retried.
    """

    workflow: UUID
    name: str
    run: int
    job: UUID | None
    timeout_s: float | None
    cancels: bool | None
    has_default: bool | None
    default: str | None
    going: bool


class SignalTimeouts:
    """Ends steps whose timers are due.

    A step ends once, by its signal or its timer, whichever is written first. A timer is deleted
    after its step has ended; if the process dies in between, the timer is found again.
    """

    def __init__(self, broker: Broker) -> None:
        self._tables = SQL.on(broker)
        self._calls = WorkflowCalls(broker)

    async def turn(self) -> int:
        """End the steps of due timers, and return the number of timers.

        :raises BrokerError: the server is unavailable.
        """
        found = 0
        for _ in range(_MOST_BATCHES):
            due = [SignalTimeout(*row) for row in await self._tables.fetch("due", BATCH)]
            if due:
                await self._time_out(due)
            found += len(due)
            if len(due) < BATCH:
                break
        return found

    async def _time_out(self, due: Sequence[SignalTimeout]) -> None:
        outcomes: list[StepOutcome] = []
        for timer in due:
            if timer.job is None or not timer.going:
                continue
            why = f"no signal came within {timer.timeout_s:,.10g} s"
            if timer.cancels:
                why = f"step {timer.name}: {why}"
                try:
                    await self._calls.cancel(timer.workflow, why, waiting=(timer.name, timer.run))
                except StatementFailed as error:
                    self._calls.postpone(timer.workflow, error)
            else:
                outcomes.append(_outcome(timer, timer.job, why))
        if outcomes:
            left = await self._calls.report(outcomes)
            logger.info("workflow_waits_expired steps=%d", len(outcomes) - len(left))
        ids, names, runs = zip(
            *((timer.workflow, timer.name, timer.run) for timer in due), strict=True
        )
        await self._tables.fetch("rung", list(ids), list(names), list(runs))


def _outcome(timer: SignalTimeout, job: UUID, why: str) -> StepOutcome:
    ref = StepRef(timer.workflow, timer.name, timer.run, False)
    if timer.has_default:
        return outcome_of(ref, job, int(State.SUCCEEDED), timer.default, None, None)
    return outcome_of(ref, job, int(State.FAILED), None, why, "chancy.SignalTimeout")

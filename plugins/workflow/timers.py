"""Steps that have waited for their signals for as long as they may."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.plugins.workflow.ends import StepOutcome, StepRef, end_of
from chancy.plugins.workflow.flows import WorkflowCalls
from chancy.plugins.workflow.store import statement, store_of
from chancy.states import State

logger = logging.getLogger("chancy.workflows")

#: Steps of one statement, and statements of one turn.
BATCH, _MOST_BATCHES = 500, 20


class SignalTimeout(NamedTuple):
    """A row of ``sql/due.sql``.

    :param job: None: its step has ended, or was retried since.
    :param default: JSON text.
    :param going: whether the workflow goes on: otherwise its step waits for nothing, and begins
        anew when the workflow does.
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
    """Whoever tells of it first, the signal or the timer, counts: a step ends once. A timer is
    deleted after its step has ended; who dies in between leaves it to be found again."""

    def __init__(self, broker: Broker) -> None:
        self._store = store_of(broker)
        self._flows = WorkflowCalls(broker)

    async def turn(self) -> int:
        """End the steps that are due; gives how many timers were.

        :raises BrokerError: the server is away.
        """
        found = 0
        for _ in range(_MOST_BATCHES):
            due = [SignalTimeout(*row) for row in await self._fetch("due", BATCH)]
            if due:
                await self._ring(due)
            found += len(due)
            if len(due) < BATCH:
                break
        return found

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def _ring(self, due: Sequence[SignalTimeout]) -> None:
        ends: list[StepOutcome] = []
        for one in due:
            if one.job is None or not one.going:
                continue
            why = f"no signal came within {one.timeout_s:,.10g} s"
            if one.cancels:
                why = f"step {one.name}: {why}"
                await self._flows.cancel(one.workflow, why, waiting=(one.name, one.run))
            else:
                ends.append(_end(one, one.job, why))
        if ends:
            await self._flows.advance_each(ends)
            logger.info("workflow_waits_over steps=%d", len(ends))
        ids, names, runs = zip(*((one.workflow, one.name, one.run) for one in due), strict=True)
        await self._fetch("rung", list(ids), list(names), list(runs))


def _end(timer: SignalTimeout, job: UUID, why: str) -> StepOutcome:
    place = StepRef(timer.workflow, timer.name, timer.run, False)
    if timer.has_default:
        return end_of(place, job, int(State.SUCCEEDED), timer.default, None, None)
    return end_of(place, job, int(State.FAILED), None, why, "chancy.SignalTimeout")

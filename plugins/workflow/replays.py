"""Replays of dead letters that have succeeded, and of which nobody told their workflow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.plugins.workflow.ends import StepRef, end_of
from chancy.plugins.workflow.flows import WorkflowCalls
from chancy.plugins.workflow.store import statement, store_of
from chancy.states import State

#: Steps of failed workflows that one turn looks at.
LOOKED_AT = 2_500


class WorkflowReplays:
    """Walks over the steps of failed workflows, some in each turn.

    A replay is a job of its own, which no table of workflows knows before it has ended: so if the
    hook fails to tell of it, and the worker dies, only its dead letter still knows it.
    """

    def __init__(self, broker: Broker) -> None:
        self._store = store_of(broker)
        self._flows = WorkflowCalls(broker)
        self._there = False
        self._after: tuple[UUID | None, str | None] = (None, None)

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def turn(self) -> int:
        """Tell of those that have succeeded; gives how many. A queue that keeps no finished jobs
        says nothing of them."""
        if not self._there:
            ((self._there,),) = await self._fetch("letters")
        if not self._there:
            return 0
        rows = await self._fetch("replayed", *self._after, LOOKED_AT)
        ends = [
            end_of(
                StepRef(workflow, name, run, True), job, int(State.SUCCEEDED), result, None, None
            )
            for workflow, name, run, job, result in rows
            if job is not None
        ]
        if ends:
            await self._flows.advance_each(ends)
        self._after = (rows[-1][0], rows[-1][1]) if len(rows) == LOOKED_AT else (None, None)
        return len(ends)

"""Waiting for the end of workflows."""

from __future__ import annotations

from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.plugins.workflow.record import WorkflowState
from chancy.plugins.workflow.store import statement, store_of
from chancy.results.group_waiter import GroupStatus, GroupWaiter

#: How a workflow ended, and why if not well.
Ended = tuple[WorkflowState, str | None]
Waiting = GroupWaiter[Ended]


def waiting_for(broker: Broker, clock: Clock) -> Waiting:
    """Those who wait for workflows of a broker."""
    store = store_of(broker)

    async def look(id: UUID) -> GroupStatus[Ended] | None:
        found = await store.fetch(statement("await", store.schema), [id])
        if not found:
            return None
        state = WorkflowState(found[0][1])
        return GroupStatus(state.label, state.final, (state, found[0][2]))

    return GroupWaiter(broker, clock, "workflow", look)

"""Waiting for the end of batches."""

from __future__ import annotations

from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.record import BatchState
from chancy.results.group_waiter import GroupStatus, GroupWaiter

Waiting = GroupWaiter[BatchState]


def waiting_for(broker: Broker, clock: Clock) -> Waiting:
    """Those who wait for batches of a broker."""
    calls = BatchCalls(broker)

    async def look(id: UUID) -> GroupStatus[BatchState] | None:
        state = await calls.state(id)
        return None if state is None else GroupStatus(state.label, state.final, state)

    return GroupWaiter(broker, clock, "batch", look)

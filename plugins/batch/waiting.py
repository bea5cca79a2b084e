"""Waiting for the end of batches."""

from __future__ import annotations

from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.plugins.batch.calls import Calls
from chancy.plugins.batch.record import BatchState
from chancy.results.group_waiter import Endings, Standing

Waiting = Endings[BatchState]


def waiting_for(broker: Broker, clock: Clock) -> Waiting:
    """Those who wait for batches of a broker."""
    calls = Calls(broker)

    async def look(id: UUID) -> Standing[BatchState] | None:
        state = await calls.state(id)
        return None if state is None else Standing(state.label, state.final, state)

    return Endings(broker, clock, "batch", look)

"""How often a worker checks for lost claims."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Mapping

from chancy.testing.clock import ManualClock
from chancy.testing.memory import MemoryBroker
from chancy.worker.reconciler import EVERY_S, ClaimReconciler
from chancy.worker.registration import Registration
from chancy.worker.settler import Settler
from tests.support.waiting import eventually


class Slow(MemoryBroker):
    """Takes two seconds to look up the claims of a worker."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.calls = 0

    async def running(
        self, worker_id: uuid.UUID, *, besides: Collection[uuid.UUID]
    ) -> Mapping[uuid.UUID, uuid.UUID]:
        self.calls += 1
        self.clock.advance(2.0)
        return {}


async def test_slow_checks_for_lost_claims_become_rare() -> None:
    clock = ManualClock()
    broker = Slow(clock)
    registration = Registration(
        broker,
        tags=frozenset(),
        heartbeat_s=5.0,
        blocked_s=lambda: 0.0,
        link=None,
        declared_dead=lambda: None,
    )
    settler = Settler(broker.settle, clock, on_stale=lambda _: None)
    reconciler = ClaimReconciler(broker, registration, settler, clock)
    serving = asyncio.create_task(reconciler.serve(set))
    for pause_s, calls in ((EVERY_S, 1), (190.0, 1), (10.0, 2)):
        await eventually(lambda: clock.sleepers)
        clock.advance(pause_s)
        await eventually(lambda: clock.sleepers)
        assert broker.calls == calls
    serving.cancel()
    await asyncio.wait([serving])

"""How often a worker checks for lost claims, and which claims it releases."""

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


class Assigning(MemoryBroker):
    """Has the claims for a worker that a test gives it."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[uuid.UUID, uuid.UUID] = {}
        self.calls = 0

    async def running(
        self, worker_id: uuid.UUID, *, besides: Collection[uuid.UUID]
    ) -> Mapping[uuid.UUID, uuid.UUID]:
        self.calls += 1
        return {id: lease for id, lease in self.claims.items() if id not in besides}


def reconciling(broker: MemoryBroker, clock: ManualClock) -> tuple[ClaimReconciler, Settler]:
    registration = Registration(
        broker,
        tags=frozenset(),
        heartbeat_s=5.0,
        heartbeat_timeout_s=15.0,
        blocked_s=lambda: 0.0,
        link=None,
        declared_dead=lambda: None,
    )
    settler = Settler(broker.settle, clock, on_stale=lambda _: None)
    return ClaimReconciler(broker, registration, settler, clock), settler


async def test_slow_checks_for_lost_claims_become_rare() -> None:
    clock = ManualClock()
    broker = Slow(clock)
    reconciler, _ = reconciling(broker, clock)
    serving = asyncio.create_task(reconciler.serve(set))
    for pause_s, calls in ((EVERY_S, 1), (190.0, 1), (10.0, 2)):
        await eventually(lambda: clock.sleepers)
        clock.advance(pause_s)
        await eventually(lambda: clock.sleepers)
        assert broker.calls == calls
    serving.cancel()
    await asyncio.wait([serving])


async def test_only_a_claim_that_two_checks_find_under_one_lease_is_released() -> None:
    clock, broker = ManualClock(), Assigning()
    reconciler, settler = reconciling(broker, clock)
    held: set[uuid.UUID] = set()
    serving = asyncio.create_task(reconciler.serve(lambda: held))

    async def check() -> set[uuid.UUID]:
        await eventually(lambda: clock.sleepers)
        clock.advance(EVERY_S)
        calls = broker.calls + 1
        await eventually(lambda: broker.calls == calls and clock.sleepers)
        return settler.ids

    late, lost = uuid.uuid4(), uuid.uuid4()
    broker.claims = {late: uuid.uuid4(), lost: uuid.uuid4()}
    assert await check() == set()
    held.add(late)  # the reply to its claim has arrived
    broker.claims[lost] = uuid.uuid4()  # it was claimed again
    assert await check() == set()
    assert await check() == {lost}
    serving.cancel()
    await asyncio.wait([serving])

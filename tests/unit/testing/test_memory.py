"""The broker in memory under a clock that the test moves, and what is its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from chancy.broker.notices import NoticeKind
from chancy.errors import BrokerUnavailable
from chancy.states import State
from chancy.testing.clock import ManualClock
from chancy.testing.conformance.bench import Bench, prepared, settlement
from chancy.testing.memory import MAX_NOTICES, MemoryBroker


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def bench(clock: ManualClock) -> Bench:
    bench = Bench(MemoryBroker(clock=clock))
    await bench.prepare()
    return bench


async def test_a_pause_ends_with_the_clock(bench: Bench, clock: ManualClock) -> None:
    await bench.push(prepared())
    await bench.broker.pause("default", resume_at=clock.now() + timedelta(seconds=30))
    assert await bench.claim() == []
    clock.advance(30.0)
    assert len(await bench.claim()) == 1


async def test_the_heartbeat_age_grows_until_the_next_heartbeat(
    bench: Bench, clock: ManualClock
) -> None:
    pulse = bench.broker.heartbeat(bench.worker_id)
    [claim] = await bench.running()
    clock.advance(14.0)
    assert (await bench.broker.workers())[0].heartbeat_age_s == 14.0
    assert await bench.broker.orphans(heartbeat_age_s=15.0, limit=10) == []
    assert pulse.beat() is True
    clock.advance(14.0)
    assert await bench.broker.orphans(heartbeat_age_s=15.0, limit=10) == []
    clock.advance(1.0)
    assert await bench.broker.orphans(heartbeat_age_s=15.0, limit=10) == [claim]
    assert pulse.beat() is False
    pulse.close()


async def test_times_are_those_of_the_clock(bench: Bench, clock: ManualClock) -> None:
    pushed_at = clock.now()
    [job_id] = await bench.push(prepared())
    clock.advance(1.0)
    [claim] = await bench.claim()
    clock.advance(1.0)
    await bench.settle(settlement(claim, State.SUCCEEDED))
    found = await bench.job(job_id)
    assert found.claimed_at is not None
    assert found.finished_at is not None
    passed = [at - pushed_at for at in (found.pushed_at, found.claimed_at, found.finished_at)]
    assert [one.total_seconds() for one in passed] == [0.0, 1.0, 2.0]


async def test_a_slow_listener_keeps_the_last_notices(bench: Bench) -> None:
    subscription = await bench.broker.subscribe()
    for _ in range(MAX_NOTICES + 10):
        await bench.broker.pause("default")
    await bench.push(prepared())
    notices = await subscription.receive(1.0)
    assert len(notices) == MAX_NOTICES
    assert notices[-1].kind is NoticeKind.WAKE
    await subscription.close()


async def test_closing_a_subscription_raises_unavailable_for_waiting_callers(bench: Bench) -> None:
    subscription = await bench.broker.subscribe()
    waiting = asyncio.create_task(subscription.receive(60.0))
    await asyncio.sleep(0)
    await bench.broker.close()
    with pytest.raises(BrokerUnavailable):
        await waiting
    with pytest.raises(BrokerUnavailable):
        await subscription.probe(1.0)
    await subscription.close()


async def test_a_move_that_the_table_does_not_have_is_an_error(bench: Bench) -> None:
    [claim] = await bench.running()
    with pytest.raises(AssertionError, match="running cannot be running"):
        await bench.settle(settlement(claim, State.RUNNING))

"""Waiting for the ends of what plugins run, on a broker in memory and a clock that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from chancy.broker.notices import Subscription, Topic
from chancy.plugin.tracking.groups import GroupCalls, GroupStatus, GroupWaiter
from chancy.states import State
from chancy.testing.clock import ManualClock
from chancy.testing.conformance.bench import Bench, prepared, settlement
from chancy.testing.memory import MemoryBroker


class Watched(MemoryBroker):
    """Counts who listens."""

    listeners = 0

    async def subscribe(self, topic: Topic = Topic.WORK) -> Subscription:
        self.listeners += 1
        return await super().subscribe(topic)


class Races:
    """What is waited for: the end of a job, looked at through the broker's notices."""

    kind = "race"

    def __init__(self, broker: Watched, clock: ManualClock) -> None:
        self.broker = broker
        self.looks = 0
        self.waiter = GroupWaiter(broker, clock, cast("GroupCalls[Any, Any]", self))

    async def wait(self, id: UUID, timeout_s: float | None) -> object:
        return (await self.waiter.wait(id, timeout_s)).state

    async def statuses(self, ids: Sequence[UUID]) -> Mapping[UUID, GroupStatus[Any]]:
        self.looks += 1
        return {id: GroupStatus(job.state) for id, job in (await self.broker.get(ids)).items()}

    async def watch(self, ids: Sequence[UUID]) -> Mapping[UUID, GroupStatus[Any]]:
        await self.broker.watch(ids)
        return await self.statuses(ids)

    async def unwatch(self, ids: Sequence[UUID]) -> None:
        await self.broker.unwatch(ids)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def races(clock: ManualClock) -> AsyncIterator[Races]:
    made = Races(Watched(clock=clock), clock)
    yield made
    await made.waiter.close()


@pytest.fixture
async def bench(races: Races) -> Bench:
    made = Bench(races.broker)
    await made.prepare()
    return made


async def passed(clock: ManualClock, races: Races, looks: int) -> None:
    """Let time pass until so many looks were taken."""
    for _ in range(1_000):
        if races.looks >= looks:
            return
        clock.advance(0.1)
        for _ in range(9):  # whom it woke runs until it waits again
            await asyncio.sleep(0)
    raise AssertionError(f"{races.looks} looks instead of {looks}")


async def test_a_short_wait_opens_no_session(bench: Bench, races: Races) -> None:
    [claim] = await bench.running()
    await bench.settle(settlement(claim, State.SUCCEEDED))
    assert await races.wait(claim.id, None) is State.SUCCEEDED
    assert races.looks == 1
    assert races.broker.listeners == 0


async def test_a_wait_whose_notice_is_lost_is_over_within_a_second(
    bench: Bench, races: Races, clock: ManualClock
) -> None:
    """Although it has lasted for long, so that the pauses between its polls are the longest."""
    [claim] = await bench.running()
    waiting = asyncio.create_task(races.wait(claim.id, None))
    await passed(clock, races, 20)
    assert races.broker.listeners
    races.broker.store.watched.clear()
    await bench.settle(settlement(claim, State.SUCCEEDED))
    began = clock.monotonic()
    await passed(clock, races, races.looks + 1)
    assert clock.monotonic() - began <= 1.1
    assert await waiting is State.SUCCEEDED


async def test_all_waits_share_the_statement_of_a_poll(
    bench: Bench, races: Races, clock: ManualClock
) -> None:
    claims = await bench.running(*(prepared() for _ in range(9)))
    tasks = [asyncio.create_task(races.wait(claim.id, None)) for claim in claims]
    await passed(clock, races, 6)
    began, looks = clock.monotonic(), races.looks
    await passed(clock, races, looks + 5)
    assert clock.monotonic() - began >= 2.0
    await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
    await asyncio.gather(*tasks)

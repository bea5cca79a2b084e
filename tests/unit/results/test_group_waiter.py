"""Waiting for the ends of what plugins run, on a broker in memory and a clock that a test moves."""

from __future__ import annotations

import asyncio
import logging
import uuid
from uuid import UUID

import pytest

from chancy.broker.notices import Subscription, Topic
from chancy.errors import BrokerUnavailable, WaitTimeout
from chancy.results.group_waiter import GroupStatus, GroupWaiter
from chancy.states import State
from chancy.testing.clock import ManualClock
from chancy.testing.conformance.bench import Bench, settlement
from chancy.testing.memory import MemoryBroker
from tests.support.waiting import eventually


class Watched(MemoryBroker):
    """Counts who listens, and is deaf if a test says so."""

    deaf = False
    listeners = 0
    tries = 0

    async def subscribe(self, topic: Topic = Topic.WORK) -> Subscription:
        self.tries += 1
        if self.deaf:
            raise BrokerUnavailable("no notices here")
        self.listeners += 1
        return await super().subscribe(topic)


class Races:
    """What is waited for: the end of a job, looked at through the broker's notices."""

    def __init__(self, broker: Watched, clock: ManualClock) -> None:
        self.broker = broker
        self.looks = 0
        self.endings = GroupWaiter(broker, clock, "race", self.look)

    async def look(self, id: UUID) -> GroupStatus[State] | None:
        self.looks += 1
        found = (await self.broker.watch([id])).get(id)
        if found is None:
            return None
        return GroupStatus(found.state.label, found.state is State.SUCCEEDED, found.state)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def races(clock: ManualClock) -> Races:
    return Races(Watched(clock=clock), clock)


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
    assert await races.endings.wait(claim.id, None) is State.SUCCEEDED
    assert races.looks == 1
    assert races.broker.tries == 0


async def test_a_notice_wakes_all_without_time_passing(
    bench: Bench, races: Races, clock: ManualClock
) -> None:
    [claim] = await bench.running()
    tasks = [asyncio.create_task(races.endings.wait(claim.id, None)) for _ in range(3)]
    await passed(clock, races, 12)
    await eventually(lambda: races.broker.listeners)
    await bench.settle(settlement(claim, State.SUCCEEDED))
    assert await asyncio.gather(*tasks) == [State.SUCCEEDED] * 3
    assert races.broker.listeners == 1
    assert not races.broker.store.watched


async def test_a_wait_that_has_begun_outlasts_an_outage(
    bench: Bench, races: Races, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        races.looks += 1
        raise BrokerUnavailable("away")

    [claim] = await bench.running()
    waiting = asyncio.create_task(races.endings.wait(claim.id, None))
    await passed(clock, races, 1)
    with monkeypatch.context() as outage:
        outage.setattr(races.endings, "_look", away)
        with pytest.raises(BrokerUnavailable):
            await races.endings.wait(uuid.uuid4(), None)
        await passed(clock, races, 9)
    assert not waiting.done()
    await bench.settle(settlement(claim, State.SUCCEEDED))
    await passed(clock, races, 10)
    assert await waiting is State.SUCCEEDED


async def test_the_time_out_reports_the_current_state(
    bench: Bench, races: Races, clock: ManualClock
) -> None:
    [claim] = await bench.running()
    for id, label in ((claim.id, "running"), (uuid.uuid4(), "not there")):
        waiting = asyncio.create_task(races.endings.wait(id, 1.0))
        while not waiting.done():
            clock.advance(0.1)
            await asyncio.sleep(0)
        with pytest.raises(WaitTimeout, match=f"race {id} is {label} after 1.0 s"):
            await waiting


async def test_the_deaf_look_twice_a_second_and_say_so_once(
    bench: Bench, races: Races, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    races.broker.deaf = True
    [claim] = await bench.running()
    with caplog.at_level(logging.WARNING, "chancy.broker"):
        waiting = asyncio.create_task(races.endings.wait(claim.id, None))
        await passed(clock, races, 6)
        began, looks = clock.monotonic(), races.looks
        await passed(clock, races, looks + 10)
        assert 4.0 <= clock.monotonic() - began <= 6.0
        await bench.settle(settlement(claim, State.SUCCEEDED))
        await passed(clock, races, looks + 11)
    assert await waiting is State.SUCCEEDED
    assert races.broker.tries > 1
    said = [one.getMessage() for one in caplog.records if one.name == "chancy.broker"]
    assert len(said) == 1
    assert said[0].startswith("listening_failed topic=finished polling=true")
    assert said[0].endswith("error=no notices here")


async def test_a_wait_that_is_cancelled_twice_stops_listening(
    bench: Bench, races: Races, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    [claim] = await bench.running()
    unwatching, never = asyncio.Event(), asyncio.Event()

    async def unwatch(*_: object) -> None:
        unwatching.set()
        await never.wait()

    monkeypatch.setattr(races.broker, "unwatch", unwatch)
    waiting = asyncio.create_task(races.endings.wait(claim.id, None))
    await passed(clock, races, 12)
    await eventually(lambda: races.broker.listeners)
    waiting.cancel()
    await unwatching.wait()
    waiting.cancel()
    await asyncio.wait([waiting])
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert "chancy group wait of race" not in names

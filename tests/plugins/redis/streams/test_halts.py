"""Halted partitions and their resumption; maintenance of streams."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import pytest

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.group import executor
from chancy.plugins.redis.streams.group.control import Control
from chancy.plugins.redis.streams.inspection import Inspection
from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.model.policy import Halt
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import Fleet, Order, beat_often, fleet, working
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually, gives


def _no_decode(_: Any) -> Order:
    raise AssertionError("nothing is decoded")


async def halted(crew: Fleet) -> dict[int, str]:
    reports = await Inspection(crew.orders, "handle").report()
    return {one.partition: one.halted for one in reports if one.halted is not None}


@pytest.mark.row("R19", "R22")
async def test_resume_continues_the_named_partitions_and_shows_why_they_stopped(
    place: dict[str, Any],
) -> None:
    async with fleet(**place, partitions=3, bad={0, 1}, options={"policy": Halt()}) as crew:
        worker = await crew.settle()
        await crew.send(0, 6, keys=3)
        both = {0: "ValueError: event 0", 1: "ValueError: event 1"}
        await eventually(lambda: gives(halted(crew), both))
        await eventually(lambda: crew.numbers == [2, 5])
        look = Inspection(crew.orders, "handle")
        assert await look.resume([2]) == {}
        crew.bad.clear()
        assert await look.resume([]) == {}
        assert await look.resume([1]) == {1: "ValueError: event 1"}
        await eventually(lambda: crew.numbers[-2:] == [1, 4])
        assert worker.executor.runner.halted == {0}
        await eventually(lambda: gives(halted(crew), {0: "ValueError: event 0"}))
        assert await look.resume() == {0: "ValueError: event 0"}
        await eventually(lambda: crew.numbers[-2:] == [0, 3])
        assert await halted(crew) == {}
        await eventually(crew.idle)


async def test_a_full_server_accepts_a_resume(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis(maxmemory_policy="noeviction")
    async with fleet(server.url, partitions=1, bad={0}, options={"policy": Halt()}) as crew:
        await crew.start()
        await crew.send(0, 2)
        error = {0: "ValueError: event 0"}
        await eventually(lambda: gives(halted(crew), error))
        await crew.orders.link.command("CONFIG", "SET", "maxmemory", 1)
        crew.bad.clear()
        assert await Inspection(crew.orders, "handle").resume() == error
        await eventually(lambda: crew.numbers == [0, 1])


async def test_the_next_owner_begins_what_was_halted(place: dict[str, Any]) -> None:
    async with fleet(**place, partitions=1, bad={0}, options={"policy": Halt()}) as crew:
        first = await crew.start()
        await crew.send(0, 2)

        async def shown() -> bool:
            return bool(await halted(crew))

        await eventually(shown)
        await crew.stop(first)
        assert await halted(crew) == {}
        crew.bad.clear()
        await crew.start()
        await eventually(lambda: crew.numbers == [0, 1])
        assert await halted(crew) == {}


async def test_a_resume_of_old_is_not_repeated_when_a_connection_was_lost(
    redis_url: str,
) -> None:
    async with fleet(redis_url, partitions=3) as crew:
        heard: list[tuple[str, Collection[int] | None]] = []
        worker = await crew.settle()
        link = crew.orders.link
        control = Control(link, worker.executor.processor, lambda *one: heard.append(one))
        task = asyncio.create_task(control.serve("0-0"))
        look = Inspection(crew.orders, "handle")
        await look.resume()
        await eventually(lambda: ("resume", None) in heard)
        count = len(heard)
        await link.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await eventually(lambda: len(heard) > count)  # the plan was read again
        await look.resume([2])
        await eventually(lambda: ("resume", {2}) in heard)
        assert heard.count(("resume", None)) == 1
        task.cancel()
        await asyncio.wait([task])


async def test_events_after_the_loss_of_a_group_are_not_skipped(redis_url: str) -> None:
    async with fleet(redis_url, partitions=1, options={"start": "$"}) as crew:
        await crew.send(0, 1)
        worker = await crew.settle()
        await crew.send(1, 1)
        await eventually(lambda: crew.numbers == [1])
        await crew.stop(worker)
        await crew.orders.link.command("XGROUP", "DESTROY", crew.orders.keys.log(0), "handle")
        await crew.send(2, 1)
        await crew.start()
        await eventually(lambda: 2 in crew.numbers)


@pytest.mark.row("R04", "R42")
async def test_settings_and_events_are_there_after_a_data_loss(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are stored before the first send: else a differing worker would start."""
    beat_often(monkeypatch)
    async with fleet(redis_url, partitions=2, options={"start": "$"}) as crew:
        await crew.send(0, 2)
        worker = await crew.settle()
        link, keys = crew.orders.link, crew.orders.keys
        await link.command("FLUSHALL")

        async def kept() -> bool:
            return bool(await link.command("HGET", keys.meta, "partitions") == b"2")

        await eventually(kept)
        await eventually(crew.settled)
        assert len(worker.owned) == 2
        await crew.send(2, 2)
        await eventually(lambda: sorted(crew.numbers) == [2, 3])


async def test_acknowledgements_during_a_batch_are_sent_with_it() -> None:
    """A thread acknowledges while the loop collects earlier acknowledgements."""
    loop = asyncio.get_running_loop()
    lane = OwnedPartition[Order](
        0, 1, loop.time() + 60, prefetch=8, pending=0, last="0-0", loop=loop
    )
    poked: list[OwnedPartition[Order]] = []
    lane.poke = poked.append

    class Meanwhile(deque[Event[Order]]):
        def popleft(self) -> Event[Order]:
            lane.acked.clear()
            return super().popleft()

    lane.acked.append("1-0")
    lane.taken = Meanwhile([Event(0, "2-0", (), False, _no_decode)])
    lane.low = 0
    lane.buffer.append(Event(0, "3-0", (), False, _no_decode))
    lane.finish()
    await eventually(lambda: lane.flush and poked == [lane])
    assert list(lane.acked) == ["2-0"]


async def test_completed_work_is_counted_in_the_log(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(executor, "_COUNT_S", 0.02)
    caplog.set_level("INFO", "chancy.redis.streams")
    counts = "read=3 acked=2 failed=1 dead=0 fenced=0 gone=0 rebalances=1"
    async with fleet(redis_url, partitions=2, bad={2}, options={"policy": Halt()}) as crew:
        worker = await crew.settle()
        await crew.send(0, 3, keys=2)
        line = f"processor_counts processor=orders/handle partitions=2 halted=1 parked=0 {counts}"
        await eventually(lambda: line in caplog.text)
        assert caplog.text.count(line) == 1, "what has not changed is not said again"
        member = worker.executor.member
        await crew.stop(worker)
        assert (
            f"processor_left processor=orders/handle member={member} read=3 acked=2" in caplog.text
        )


@pytest.mark.row("R19")
async def test_a_halt_stops_no_other_processor(place: dict[str, Any]) -> None:
    """Neither of the same stream nor of another, even if all partitions of one are halted."""
    streams = Streams(RedisSettings(**place, prefix="t:"))
    orders = streams.stream("orders", record=Order, partition_by="key", partitions=2)
    others = streams.stream("others", record=Order, partition_by="key", partitions=2)
    seen: dict[str, list[int]] = {"beside": [], "elsewhere": []}

    @streams.processor(orders, policy=Halt(), join_delay_s=0)
    async def spoilt(events: Events[Order]) -> None:
        async for order in events.records():
            raise ValueError(f"event {order.seq}")

    @streams.processor(orders, join_delay_s=0)
    async def beside(events: Events[Order]) -> None:
        async for order in events.records():
            seen["beside"].append(order.seq)

    @streams.processor(others, join_delay_s=0)
    async def elsewhere(events: Events[Order]) -> None:
        async for order in events.records():
            seen["elsewhere"].append(order.seq)

    async with working(streams):
        for stream in (orders, others):
            await stream.send(*(Order(key=seq, seq=seq) for seq in range(20)))
        halting = next(one for one in streams.executors if one.processor.name == "spoilt")
        await eventually(lambda: halting.runner.halted == {0, 1})
        for stream in (orders, others):
            await stream.send(*(Order(key=seq, seq=seq) for seq in range(20, 40)))
        await eventually(lambda: all(sorted(one) == list(range(40)) for one in seen.values()))
        assert halting.runner.halted == {0, 1}


async def length(crew: Fleet) -> int:
    return int(await crew.orders.link.command("XLEN", crew.orders.keys.log(0)))


@pytest.mark.row("R06")
async def test_only_events_acknowledged_by_every_processor_are_trimmed(redis_url: str) -> None:
    options = {"check_s": 0.05, "lease_s": 0.4}
    async with fleet(
        redis_url, partitions=1, stream_options={"size": 500}, options=options
    ) as crew:
        link, log = crew.orders.link, crew.orders.keys.log(0)
        await link.command("XGROUP", "CREATE", log, "slow", "0", "MKSTREAM")
        await crew.start()
        for first in range(0, 500, 100):
            await crew.send(first, 100)
        # Again, perhaps, as the lease is short.
        await eventually(lambda: set(crew.numbers) == set(range(500)))
        crew.orders.size = 50
        for worker in crew.workers.values():
            worker.stream.size = 50
        read = await link.command(
            "XREADGROUP", "GROUP", "slow", "c", "COUNT", 100, "STREAMS", log, ">"
        )
        ids = [xid for xid, _ in read[0][1]]
        await link.command("XACK", log, "slow", *ids)

        async def trimmed() -> bool:
            first = await link.command("XRANGE", log, "-", "+", "COUNT", 1)
            return bool(first[0][0] > ids[0])

        await eventually(trimmed)
        # No event that the slow group has not read is trimmed.
        assert await length(crew) >= 400
        await link.command("XGROUP", "DESTROY", log, "slow")

        async def short() -> bool:
            return await length(crew) <= 250

        await eventually(short)


@pytest.mark.row("R04")
async def test_a_worker_with_other_partitions_does_not_begin(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(redis_url, partitions=4) as crew:
        await crew.settle()
        crew.partitions = 8
        other = await crew.start()
        await eventually(lambda: "processor_not_started" in caplog.text)
        assert other.owned == set()
        assert "8" in caplog.text
        assert "4" in caplog.text
        del crew.workers[other.number]
        crew.partitions = 4
        assert crew.settled()
        crew.workers[other.number] = other


@pytest.mark.row("R19")
async def test_a_halt_may_end_the_process(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))

    options = {"policy": Halt(exit=True)}
    async with fleet(redis_url, partitions=2, bad={0, 1}, options=options) as crew:
        worker = await crew.start()
        await crew.send(0, 2)
        await eventually(lambda: worker.executor.runner.halted == {0, 1})
        assert sent == [(os.getpid(), signal.SIGTERM)], "a second one would end it at once"
        assert worker.streams.exit.code == 5
        assert await crew.pending() == 2

"""The end of a worker: each of its processors has its own grace period."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from chancy import Chancy, Queue, job
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.group import runner
from chancy.plugins.redis.streams.processing import cancellation as ending
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from chancy.worker.worker import Worker
from tests.plugins.redis.streams import fleet as fleets
from tests.plugins.redis.streams.orders import Order
from tests.plugins.redis.trips import late, script
from tests.support.waiting import eventually

at_work, leave = asyncio.Event(), asyncio.Event()


@job(queue="work")
async def errand() -> None:
    at_work.set()
    await leave.wait()


@pytest.fixture
async def streams(redis_url: str) -> AsyncIterator[Streams]:
    made = Streams(RedisSettings(url=redis_url, prefix="t:"))
    yield made
    await made.link.close()


def declare(streams: Streams) -> Stream[Order]:
    return streams.stream("orders", record=Order, partition_by="order_id", partitions=2)


def consumers() -> list[str]:
    """The consumers that run in this loop, by name."""
    return [
        task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("orders/")
    ]


@pytest.mark.row("R32")
async def test_a_processor_that_has_ended_does_not_interrupt_the_others(streams: Streams) -> None:
    """They are cancelled once: a second cancellation would end their grace periods."""
    stream, began, ended = declare(streams), asyncio.Event(), list[int]()
    released = asyncio.Event()

    @streams.processor(stream, join_delay_s=0)
    async def idle(events: Events[Order]) -> None:
        async for _ in events.records():
            pass
        released.set()

    @streams.processor(stream, join_delay_s=0)
    async def slow(events: Events[Order]) -> None:
        async for order in events.records():
            began.set()
            await released.wait()
            # Until the other one has released its partitions and ended.
            await eventually(lambda: len(streams.executors) == 1)
            await asyncio.sleep(0.05)
            ended.append(order.order_id)

    await stream.send(Order(order_id=1))
    serving = asyncio.create_task(streams.serve())
    await began.wait()
    serving.cancel()
    await asyncio.wait([serving])
    assert ended == [1]
    assert consumers() == []
    for number in range(stream.partitions):
        for group in await streams.link.command("XINFO", "GROUPS", stream.keys.log(number)):
            named = dict(zip(group[::2], group[1::2], strict=True))
            assert named[b"pending"] == 0, named


@pytest.mark.row("R32")
async def test_a_second_request_to_stop_interrupts_and_leaves_nothing(streams: Streams) -> None:
    stream, began, ended = declare(streams), asyncio.Event(), list[str]()

    @streams.processor(stream, join_delay_s=0, grace_s=60)
    async def endless(events: Events[Order]) -> None:
        async for _ in events.records():
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append("interrupted")

    await stream.send(Order(order_id=1))
    serving = asyncio.create_task(streams.serve())
    await began.wait()
    serving.cancel()
    await eventually(lambda: all(lane.closing for lane in streams.executors[0].runner.partitions))
    assert not serving.done()
    serving.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait([serving])
    assert ended == ["interrupted"]
    assert (consumers(), streams.executors) == ([], [])


@pytest.mark.row("R30", "R32")
async def test_a_function_that_suppresses_every_cancellation_is_abandoned(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It delays neither the end nor the next owner, and its acknowledgements are refused."""
    monkeypatch.setattr(ending, "LEAVE_S", 0.2)
    stream, began, go_on, ended = declare(streams), asyncio.Event(), asyncio.Event(), list[int]()

    @streams.processor(stream, join_delay_s=0, grace_s=0.1)
    async def stubborn(events: Events[Order]) -> None:
        async for order in events.records():
            began.set()
            while not go_on.is_set():
                with suppress(asyncio.CancelledError):
                    await go_on.wait()
            ended.append(order.order_id)

    async def seen(number: int) -> tuple[Any, Any]:
        held = await streams.link.command("XPENDING", stream.keys.log(number), "stubborn")
        return held["pending"], await streams.link.command(
            "HGET", stream.keys.own(number, "stubborn"), "owner"
        )

    await stream.send(Order(order_id=1), Order(order_id=1))
    serving = asyncio.create_task(streams.serve())
    await began.wait()
    serving.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait([serving])
    assert "processor_abandoned processor=orders/stubborn" in caplog.text
    assert (consumers(), streams.executors, ended) == ([], [], [])
    before = [await seen(number) for number in range(stream.partitions)]
    assert sorted(before) == [(0, None), (2, None)]
    go_on.set()
    await eventually(lambda: ended == [1])
    await asyncio.sleep(0.1)  # an acknowledgement would be sent in this time
    assert [await seen(number) for number in range(stream.partitions)] == before


@pytest.mark.row("R25", "R32")
async def test_partitions_are_handed_over_while_the_last_jobs_have_their_time(
    dsn: str, redis_url: str
) -> None:
    redis = RedisPlugin(url=redis_url, prefix="t:")
    stream, began, go_on = declare(redis.streams), asyncio.Event(), asyncio.Event()
    ended: list[int] = []

    @redis.streams.processor(stream, join_delay_s=0, grace_s=60)
    async def slow(events: Events[Order]) -> None:
        async for order in events.records():
            began.set()
            await go_on.wait()
            ended.append(order.order_id)

    async def owners() -> list[bytes]:
        found = [
            await redis.streams.link.command("HGET", stream.keys.own(number, "slow"), "owner")
            for number in range(stream.partitions)
        ]
        return [one for one in found if one]

    async with Chancy(
        dsn, queues=[Queue(name="work", executor="async")], plugins=[redis]
    ) as chancy:
        worker = Worker(chancy)
        await worker.start()
        await stream.send(Order(order_id=1))
        await began.wait()
        reference = await chancy.push(errand.job())
        await at_work.wait()
        stopping = asyncio.create_task(worker.stop())

        async def one_left() -> bool:
            return len(await owners()) == 1

        await eventually(one_left)
        leave.set()
        await reference.wait(30)
        # The job has ended before the streams are cancelled: `ending` was set before.
        await asyncio.sleep(0.2)
        assert ended == []
        assert not stopping.done()
        go_on.set()
        await stopping
    assert ended == [1]
    assert await owners() == []
    await redis.streams.link.close()


@pytest.mark.row("R25")
async def test_a_late_release_of_a_partition_notifies_the_other_workers(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They found the partition busy before, and would not try again for a minute."""
    monkeypatch.setattr(runner, "_LATE_S", 60.0)
    began, go_on = list[int](), asyncio.Event()

    async def slow(worker: int, events: Events[fleets.Order]) -> None:
        async for _ in events.records():
            began.append(worker)
            await go_on.wait()

    options = {"check_s": 60.0, "lease_s": 60.0, "grace_s": 60.0}
    async with fleets.fleet(redis_url, partitions=4, handler=slow, options=options) as crew:
        await crew.settle(2)
        await crew.send(0, 1)
        await eventually(lambda: began)
        leaving = crew.workers[began[0]]
        stopping = asyncio.create_task(crew.stop(leaving))
        await eventually(lambda: leaving.number not in crew.workers)
        (stays,) = crew.workers.values()
        await eventually(lambda: len(stays.owned) == 3)
        go_on.set()
        await eventually(crew.settled, timeout=15)
        await stopping


@pytest.mark.row("R25")
@pytest.mark.parametrize("name", ["streams.membership", "streams.acquire"])
async def test_requests_before_the_end_are_not_run_after_it(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A worker that stops while it joins or acquires partitions leaves and releases them."""
    stream, sent = declare(streams), late(monkeypatch, script(name))

    @streams.processor(stream, join_delay_s=0)
    async def idle(events: Events[Order]) -> None:
        async for _ in events.records():
            pass

    serving = asyncio.create_task(streams.serve())
    await sent.wait()
    serving.cancel()
    await asyncio.wait([serving])
    await asyncio.sleep(0.2)
    assert await streams.link.command("EXISTS", stream.keys.members("idle")) == 0
    for number in range(stream.partitions):
        assert not await streams.link.command("HGET", stream.keys.own(number, "idle"), "owner")

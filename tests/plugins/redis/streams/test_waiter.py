"""A partition that becomes idle in the moment in which its worker begins to wait for the others."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from chancy.plugins.redis.streams.group.waiter import Waiter
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.connection import RedisConnection
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams.fleet import Order, orders_of
from tests.support.waiting import eventually


def idle(number: int) -> OwnedPartition[Order]:
    """A lane that has read everything."""
    lane = OwnedPartition[Order](
        number,
        1,
        time.monotonic() + 60,
        prefetch=8,
        pending=0,
        last="0-0",
        loop=asyncio.get_running_loop(),
    )
    lane.more = False
    return lane


@pytest.mark.row("R16")
async def test_it_is_waited_for_though_the_read_was_not_on_its_way_yet(
    alone: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, begun = Streams(alone.settings), asyncio.Event()
    command = RedisConnection.command
    orders = orders_of(streams, 2)

    @streams.processor(orders)
    async def handle(events: Events[Order]) -> None: ...

    async def late(wire: RedisConnection, parts: Any, timeout_s: float) -> Any:
        if parts[0] == "XREAD":
            begun.set()
            await asyncio.sleep(0.05)  # so that it is sent after what is to end it
        return await command(wire, parts, timeout_s)

    monkeypatch.setattr(RedisConnection, "command", late)
    lanes = [idle(0)]
    waiter = Waiter(alone, streams.processors[0], lambda: lanes)
    serving = asyncio.create_task(waiter.serve())
    try:
        await begun.wait()
        lanes.append(idle(1))
        waiter.check()
        await asyncio.sleep(0.1)  # until it has been sent, and blocks for four seconds unless ended
        await alone.command("XADD", orders.keys.log(1), "*", "a", "b")
        await eventually(lambda: lanes[1].more, timeout=3)
        assert not lanes[0].more
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def test_each_processor_of_a_stream_is_woken_by_the_entries_that_it_has_not_read(
    alone: RedisClient,
) -> None:
    streams = Streams(alone.settings)
    orders = orders_of(streams, 1)
    log = orders.keys.log(0)

    async def handle(_: Events[Order]) -> None: ...

    lanes, waiters = [idle(0), idle(0)], list[Waiter]()
    for name, lane in zip("ab", lanes, strict=True):
        streams.processor(orders, name=name)(handle)
        waiters.append(Waiter(alone, streams.processors[-1], partial(list, [lane])))
    first, second = lanes

    def wait_after(last: str, *chosen: OwnedPartition[Order]) -> None:
        for lane in chosen:
            lane.last, lane.more = last, False
        for waiter in waiters:
            waiter.check()

    serving = [asyncio.create_task(waiter.serve()) for waiter in waiters]
    try:
        xid = await alone.command("XADD", log, "*", "a", "b")
        await eventually(lambda: first.more and second.more)
        wait_after(xid.decode(), *lanes)
        xid = await alone.command("XADD", log, "*", "a", "b")
        await eventually(lambda: first.more and second.more)
        # The first has read that entry, and waits for the next one.
        wait_after(xid.decode(), first)
        wait_after("0-0", second)
        await eventually(lambda: second.more)
        assert not first.more
        # The end of one processor does not concern the other.
        serving[1].cancel()
        await asyncio.wait(serving[1:])
        await alone.command("XADD", log, "*", "a", "b")
        await eventually(lambda: first.more)
    finally:
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)

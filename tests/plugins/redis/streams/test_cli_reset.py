"""``chancy redis stream reset``: what it forgets, and what it leaves as it is."""

from __future__ import annotations

import asyncio
import time

import pytest

from chancy.plugins.redis.streams.inspection import Inspection
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.orders import Order
from tests.plugins.redis.streams.test_cli import runner


@pytest.mark.row("R39")
async def test_read_events_are_discarded_except_in_owned_partitions(shop_streams: Streams) -> None:
    (stream, _), link = shop_streams.streams, shop_streams.link
    keys, run = stream.keys, runner(shop_streams.link.settings)
    await stream.send(*(Order(order_id=number) for number in range(8)))
    for number in (0, 1):
        log = keys.log(number)
        await link.command("XGROUP", "CREATE", log, "bill", "0")
        await link.command("XREADGROUP", "GROUP", "bill", "e1", "STREAMS", log, ">")
    # Of a worker that is no member yet, or any more.
    until = round(time.time() * 1000) + 60_000
    await link.command("HSET", keys.own(0, "bill"), "owner", "one", "until", until, "epoch", 1)
    await link.command("HSET", keys.park(2, "bill"), "xid", "1-1", "error", "E: no", "at", 1)
    said = await asyncio.to_thread(run, "reset", "orders", "bill", "--yes", code=1)
    assert said.out == "3 partitions reset, 2 events discarded\n"
    assert "partitions owned by a worker were not reset: 0\n" in said.err
    found = await Inspection(stream, "bill").report()
    assert [(one.lag, one.pending) for one in found] == [(0, 2), (2, 0), (2, 0), (2, 0)]
    assert [one.parked for one in found] == [None] * 4

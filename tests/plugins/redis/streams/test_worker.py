"""Streams beside a real worker, by the plugin."""

from __future__ import annotations

from typing import Any

from chancy.app.app import Chancy
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.streams.processing.events import Events
from chancy.worker.worker import Worker
from tests.plugins.redis.streams.fleet import Order, in_turn
from tests.support.waiting import eventually


async def test_a_worker_runs_processors_and_hands_over_at_its_end(dsn: str, redis_url: str) -> None:
    redis = RedisPlugin(url=redis_url, prefix="t:")
    orders = redis.streams.stream(
        "orders", record=Order, partition_by="key", partitions=4, hasher=in_turn
    )
    seen: list[int] = []

    @redis.streams.processor(orders, join_delay_s=0)
    async def handle(events: Events[Order]) -> None:
        async for batch in events.records().take(10, within=0.01):
            seen.extend(order.seq for order in batch)

    try:
        async with Chancy(dsn, plugins=[redis]) as chancy, Worker(chancy):
            await orders.send(*(Order(key=number % 4, seq=number) for number in range(100)))
            await eventually(lambda: sorted(seen) == list(range(100)))
        for number in range(4):
            owner: Any = await orders.link.command(
                "HGET", orders.keys.own(number, "handle"), "owner"
            )
            assert owner is None
            assert (await orders.link.command("XPENDING", orders.keys.log(number), "handle"))[
                "pending"
            ] == 0
        assert not await orders.link.command("EXISTS", orders.keys.members("handle"))
    finally:
        await redis.streams.link.close()

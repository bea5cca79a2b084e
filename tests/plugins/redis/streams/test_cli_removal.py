"""``chancy redis stream remove``, for processors that are no longer used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.producing.batch import StreamFull
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams import shop
from tests.plugins.redis.streams.fleet import working
from tests.plugins.redis.streams.orders import Order
from tests.plugins.redis.streams.test_cli import runner
from tests.support.waiting import eventually


@pytest.fixture
async def streams(link: RedisClient) -> AsyncIterator[Streams]:
    made = Streams(RedisSettings(url=link.settings.url, cluster=link.settings.cluster, prefix="t:"))
    shop.declare(made, size=2)
    yield made
    await made.link.close()


async def test_an_unused_processor_is_removed(streams: Streams) -> None:
    """The stream is full because of it; then there is room, and nothing of it is left."""
    settings = streams.link.settings
    run = runner(settings, shop_size="2")
    (stream, _) = streams.streams
    seen: list[int] = []

    @streams.processor(stream, join_delay_s=0, lease_s=5.0, policy=Ignore(keep=True))
    async def bill(events: Events[Any]) -> None:
        async for order in events.records():
            seen.append(order.order_id)
            raise ValueError("never")

    def remove(*words: str, code: int = 0) -> Any:
        return asyncio.to_thread(run, "remove", "orders", "bill", *words, code=code)

    async with working(streams):
        await stream.send(Order(order_id=0))
        await eventually(lambda: seen == [0])
        refused = await remove("--yes", code=1)
        assert "1 workers run the processor bill of orders: stop them, wait" in refused.err
    await stream.send(Order(order_id=4), Order(order_id=8))
    await streams.link.command("XGROUP", "CREATE", stream.keys.log(0), "ship", "$")
    with pytest.raises(StreamFull, match="chancy redis stream remove"):
        await stream.send(Order(order_id=12), Order(order_id=16), timeout_s=0.05)
    asked = await remove(code=1)
    assert "of orders, with 0 pending events and 1 dead letters?" in asked.err
    assert (await remove("--yes", "--json")).json == {"partitions": 4, "pending": 0, "letters": 1}
    await stream.send(Order(order_id=12), Order(order_id=16), timeout_s=0)
    assert [key async for key in left(streams.link)] == []
    assert "nothing is stored of a processor bill" in (await remove("--yes", code=1)).err


async def test_a_processor_is_forgotten_although_it_has_members(streams: Streams) -> None:
    """Those that were killed a moment ago, and will not come again."""
    run = runner(streams.link.settings, shop_size="2")
    (stream, _) = streams.streams
    key = stream.keys.members("bill")
    await streams.link.command("ZADD", key, 9_999_999_999_999, "gone")
    words = ("remove", "orders", "bill", "--yes")
    assert "or pass --force" in (await asyncio.to_thread(run, *words, code=1)).err
    said = await asyncio.to_thread(run, *words, "--force")
    assert said.out == "removed from 0 partitions, with 0 pending events and 0 dead letters\n"
    assert not await streams.link.command("EXISTS", key)


async def left(link: RedisClient) -> AsyncIterator[str]:
    """The keys of the processor that are there."""
    keys = StreamKeys("t:", "orders")
    for number in range(4):
        for key in (keys.own(number, "bill"), keys.park(number, "bill"), keys.dead(number, "bill")):
            if await link.command("EXISTS", key):
                yield key

"""The pages about Redis: how far processors are in their streams, and services."""

from __future__ import annotations

import asyncio

from chancy import Chancy, Worker
from chancy.plugins.dashboard import DashboardPlugin
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.services.base import Context, Service
from chancy.plugins.redis.streams.processing.events import Events
from tests.plugins.dashboard.browsing import ADMIN, browser, text_of
from tests.plugins.redis.streams.fleet import in_turn
from tests.plugins.redis.streams.orders import Order
from tests.support.waiting import eventually


async def test_streams_and_services_have_a_page_once_they_are_declared(
    dsn: str, redis_url: str
) -> None:
    redis = RedisPlugin(url=redis_url)
    chancy = Chancy(dsn, plugins=[DashboardPlugin(), redis])
    await chancy.migrate()
    async with browser(chancy, ADMIN) as ada:
        async with chancy:
            assert "redis" not in (await ada.get()).text
        orders = redis.streams.stream(
            "orders", record=Order, partition_by="order_id", partitions=2, hasher=in_turn
        )

        @redis.streams.processor(orders, join_delay_s=0, grace_s=0.1)
        async def bill(events: Events[Order]) -> None:
            await asyncio.Event().wait()  # never acknowledges what it has read

        @redis.services.service
        class Mirror(Service):
            name = "mirror"

            async def start(self, ctx: Context) -> None:
                await ctx.wait(60)

        async with chancy, Worker(chancy, shutdown_timeout_s=0.1):
            for number in (1, 3, 5):
                await orders.send(Order(order_id=number))
            id = await redis.services.start("mirror")

            async def shown() -> bool:
                page = await ada.get("panels/redis-streams")
                assert "orders bill 1 0 3" in text_of(page)
                return True

            await eventually(shown)

            async def runs() -> bool:
                page = await ada.get("panels/redis-services")
                assert f"mirror {id} RUNNING" in text_of(page)
                return True

            await eventually(runs)
            assert "panels/redis-services" in (await ada.get()).text

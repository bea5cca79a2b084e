"""An application whose events are sent inside transactions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy
from chancy.broker.optional import SqlStore
from chancy.clock import SystemClock
from chancy.plugin.leader import Unelected
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.streams.producing.relay import EventRelay
from chancy.plugins.redis.streams.producing.stream import Stream
from tests.plugins.redis.streams.fleet import in_turn
from tests.plugins.redis.streams.orders import Order, orders
from tests.support.waiting import eventually


class Shop:
    """An application with one stream of two partitions: even and odd orders."""

    def __init__(self, chancy: Chancy, redis: RedisPlugin, stream: Stream[Order]) -> None:
        self.chancy, self.redis, self.stream = chancy, redis, stream

    @property
    def store(self) -> SqlStore:
        assert isinstance(self.chancy.broker, SqlStore)
        return self.chancy.broker

    async def commit(self, *ids: int) -> None:
        """Send orders inside a transaction."""
        async with self.chancy.transaction() as tx:
            await self.stream.send(*orders(*ids), within=tx)

    def relay(self) -> EventRelay:
        class Beside:
            broker, clock, leader = self.store, SystemClock(), Unelected()

        runtime: Any = Beside()
        return EventRelay(self.stream.link, self.store, runtime)

    async def waiting(self) -> list[tuple[int, int]]:
        """Partition and number of events of each row."""
        rows = await self.store.fetch(
            "select partition, events from chancy.redis_events order by pos"
        )
        return [(row[0], row[1]) for row in rows]

    async def relayed(self) -> None:
        """Relay until nothing is left."""
        mine = self.relay()
        while await mine.turn():
            pass
        assert await self.waiting() == []

    async def emptied_by(self, relay: EventRelay) -> None:
        """Let a relay take turns until nothing is left."""

        async def empty() -> bool:
            await relay.turn()
            return not await self.waiting()

        await eventually(empty)


@asynccontextmanager
async def opened(dsn: str, url: str, **options: Any) -> AsyncGenerator[Shop]:
    cluster = bool(options.pop("cluster", False))
    redis = RedisPlugin(url=url, cluster=cluster, prefix=options.pop("prefix", "t:"))
    stream = redis.streams.stream(
        "orders", record=Order, partition_by="order_id", partitions=2, hasher=in_turn, **options
    )
    try:
        async with Chancy(dsn, plugins=[redis], pool_size=3) as chancy:
            yield Shop(chancy, redis, stream)
    finally:
        await stream.link.close()

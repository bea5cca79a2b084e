"""The connections to Redis of one worker."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from chancy.app.app import Chancy
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.services import Service
from chancy.plugins.redis.streams.processing.events import Events
from chancy.queue.queue import Queue
from chancy.worker.worker import Worker
from tests.plugins.redis.streams.fleet import Order
from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually


class Idle(Service):
    name = "idle"

    async def start(self, ctx: object) -> None: ...


@pytest.mark.parametrize(
    ("processors", "services"),
    [(0, False), (5, False), (5, True)],
    ids=["jobs", "five processors", "five processors and services"],
)
async def test_an_idle_worker_opens_few_connections(
    dsn: str,
    redis_server: RedisServer,
    redis_url: str,
    processors: int,
    services: bool,
) -> None:
    """For commands, for heartbeats, and for all that it waits for."""
    redis = RedisPlugin(url=redis_url, prefix="t:")
    orders = redis.streams.stream("orders", record=Order, partition_by="key", partitions=4)
    seen = Counter[str]()
    for number in range(processors):

        @redis.streams.processor(orders, name=f"p{number}", join_delay_s=0, lease_s=2)
        async def handle(events: Events[Order], name: str = f"p{number}") -> None:
            async for _ in events.records():
                seen[name] += 1

    if services:
        redis.services.service(Idle)
    queue = Queue(name="mail", executor="async", broker="redis")
    with closing(redis_server.client()) as client:

        def chancys() -> list[object]:
            listed = command_sync(client, "CLIENT LIST")
            return [each for each in listed if each["name"] == "chancy"]

        async with Chancy(dsn, plugins=[redis], queues=[queue]) as chancy, Worker(chancy):
            await orders.send(*(Order(key=n, seq=n) for n in range(20)))
            await eventually(lambda: seen.total() == 20 * processors)
            await eventually(lambda: len(chancys()) <= 3, timeout=10)

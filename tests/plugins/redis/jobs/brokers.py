"""What the tests of the broker on Redis share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.queue.queue import Queue
from chancy.testing.conformance.bench import Bench


@asynccontextmanager
async def opened(
    url: str, *queues: Queue, **settings: Any
) -> AsyncGenerator[tuple[RedisBroker, Bench]]:
    """A broker with these settings, and a bench at it."""
    broker = RedisBroker(RedisSettings(url=url, **settings))
    await broker.open()
    try:
        bench = Bench(broker)
        await bench.prepare(*queues)
        yield broker, bench
    finally:
        await broker.close()

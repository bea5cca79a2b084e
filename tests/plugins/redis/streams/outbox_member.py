"""A worker process that relays events, to kill and to freeze: ``python -m … DSN URL``."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Sequence

from chancy import Chancy
from chancy.plugins.leadership import Leadership
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.streams.producing import relay
from chancy.plugins.redis.streams.producing.outbox import EventOutboxReader, EventOutboxRow
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.worker.worker import Worker
from tests.plugins.redis.streams.fleet import in_turn
from tests.plugins.redis.streams.orders import Order

LEASE_S = 1.0
PARTITIONS = 4


def declare(dsn: str, url: str) -> tuple[Chancy, Stream[Order]]:
    redis = RedisPlugin(url=url, prefix="t:")
    stream = redis.streams.stream(
        "orders",
        record=Order,
        partition_by="order_id",
        partitions=PARTITIONS,
        hasher=in_turn,
        size=1_000_000,
    )
    plugins = [redis, Leadership(lease_s=LEASE_S)]
    return Chancy(dsn, plugins=plugins, no_default_plugins=True, pool_size=3), stream


def perhaps_die() -> None:
    if random.random() < 0.03:
        os.kill(os.getpid(), signal.SIGKILL)


delete = EventOutboxReader.delete


async def risky_delete(outbox: EventOutboxReader, done: Sequence[EventOutboxRow]) -> int:
    """Die between the append and the deletion, or after it."""
    perhaps_die()
    count = await delete(outbox, done)
    perhaps_die()
    return count


async def main(dsn: str, url: str) -> None:
    relay.LEASE_S = LEASE_S
    # Small, so that there are many steps between which it can be killed.
    relay.ROWS = 20
    EventOutboxReader.delete = risky_delete  # type: ignore[method-assign, assignment]
    chancy, _ = declare(dsn, url)
    async with chancy, Worker(chancy, heartbeat_s=0.2, heartbeat_timeout_s=1.0):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

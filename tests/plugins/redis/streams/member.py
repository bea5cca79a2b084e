"""A worker process of a stream, to kill and to freeze: ``python -m … URL CLUSTER OPTIONS``.

What it works on it appends to a list of its partition on the server, in the order in which it does.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from typing import Any

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import Order, orders_of

LEASE_S = 1.0
PARTITIONS = 6


def noted(partition: int) -> str:
    """The list of a partition."""
    return f"noted:{partition}"


def declare(url: str, *, cluster: bool, **options: Any) -> Streams:
    streams = Streams(RedisSettings(url=url, cluster=cluster, prefix="t:"))
    orders = orders_of(streams, PARTITIONS)
    runs = itertools.count()

    quick: dict[str, Any] = {"lease_s": LEASE_S, "check_s": 0.2, "join_delay_s": 0, "grace_s": 2.0}

    async def handle(events: Events[Order]) -> None:
        run = next(runs)
        async for event in events:
            order = event.record()
            line = f"{os.getpid()}:{run} {order.key} {order.seq} {event.recovering:d}"
            await streams.link.command("RPUSH", noted(events.partition), line)

    streams.processor(orders, **(quick | options))(handle)
    return streams


async def main() -> None:
    streams = declare(sys.argv[1], cluster=sys.argv[2] == "1", **json.loads(sys.argv[3]))
    serving = asyncio.create_task(streams.serve())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    await asyncio.wait([serving])


if __name__ == "__main__":
    asyncio.run(main())

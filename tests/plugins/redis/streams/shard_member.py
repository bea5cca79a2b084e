"""A process that serves a stream of a cluster without a worker: ``python -m … URL FOLDER``.

What it does is appended to files of the folder, a line each: those of the servers may be lost.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams import standalone as alone
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import Order, orders_of

LEASE_S = 2.0
PARTITIONS = 12
TICKS, LED_TICKS = "ticks", "led"


def declare(url: str, folder: Path) -> Streams:
    streams = Streams(RedisSettings(url=url, cluster=True, prefix="t:"))
    orders = orders_of(streams, PARTITIONS)
    runs = itertools.count()

    def note(name: str, text: str) -> None:
        # One write, behind all others: the lines of processes are whole and in order.
        with (folder / name).open("a") as file:
            file.write(f"{text}\n")

    @streams.processor(
        orders, lease_s=LEASE_S, check_s=0.2, join_delay_s=0, grace_s=2.0, prefetch=64
    )
    async def handle(events: Events[Order]) -> None:
        run = next(runs)
        async for order in events.records():
            line = f"{os.getpid()}:{run} {order.key} {order.seq} {time.monotonic()}"
            note(str(events.partition), line)

    @streams.timer(every_s=0.1)
    async def tick() -> None:
        note(TICKS, str(os.getpid()))

    @streams.timer(every_s=0.1, on_leader=True)
    async def led() -> None:
        note(LED_TICKS, str(os.getpid()))

    return streams


if __name__ == "__main__":
    alone.run(declare(sys.argv[1], Path(sys.argv[2])), lease_s=LEASE_S)

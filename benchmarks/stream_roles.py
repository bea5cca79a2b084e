"""The roles of streams: ``python -m benchmarks.stream_roles ROLE URL EVENTS CHUNK``.

Each role prints a rate. ``benchmarks/peers/runnel_roles.py`` has the roles of runnel.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping

from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.streams.model.record import Record
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams

#: The size of a partition: all events of a run.
SIZE = 10_000_000


class Noop(Record):
    """The event of the benchmark."""

    i: int


def declare(url: str, size: int = SIZE) -> tuple[Streams, Stream[Noop]]:
    """Declare the stream, which has sixteen partitions."""
    streams = Streams(RedisSettings(url=url))
    return streams, streams.stream("noop", record=Noop, partition_by="i", size=size)


async def send(url: str, events: int, chunk: int, *, many: bool = False) -> float:
    """Send events, ``chunk`` in each call, including their creation; with ``many``, all by one call
    of `send_many`. Returns their rate."""
    streams, stream = declare(url)
    await stream.send(Noop(i=0))
    started = time.perf_counter()
    if many:
        await stream.send_many(Noop(i=i) for i in range(events))
    for at in range(0, 0 if many else events, chunk):
        await stream.send(*(Noop(i=i) for i in range(at, min(events, at + chunk))))
    took = time.perf_counter() - started
    await streams.link.close()
    return events / took


async def work(url: str, events: int, chunk: int) -> float:
    """Process events, in batches if ``chunk`` is over 1; returns the rate from the first to the
    last."""
    streams, stream = declare(url)
    done = asyncio.Event()
    count = 0
    first = 0.0

    def note(number: int) -> None:
        nonlocal count, first
        first = first or time.perf_counter()
        count += number
        if count >= events:
            done.set()

    @streams.processor(stream, join_delay_s=0)
    async def noop(items: Events[Noop]) -> None:
        if chunk > 1:
            async for batch in items.records().take(chunk, within=0.1):
                note(len(batch))
        else:
            async for _ in items.records():
                note(1)

    serving = asyncio.create_task(streams.serve())
    await done.wait()
    took = time.perf_counter() - first
    serving.cancel()
    await asyncio.wait([serving])
    return events / took


ROLES: Mapping[str, Callable[[str, int, int], Awaitable[float]]] = {
    "send": send,
    "send_many": functools.partial(send, many=True),
    "work": work,
}


async def main(role: str, url: str, events: str, chunk: str) -> None:
    print(await ROLES[role](url, int(events), int(chunk)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    os._exit(0)

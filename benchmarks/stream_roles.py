"""The sender and worker roles of streams: ``python -m benchmarks.stream_roles ROLE URL EVENTS …``.

Each role prints one line of JSON. ``benchmarks/peers/runnel_roles.py`` has the roles of runnel.
"""

from __future__ import annotations

import asyncio
import functools
import json
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


def declare(url: str) -> tuple[Streams, Stream[Noop]]:
    """Declare the stream, which has sixteen partitions."""
    streams = Streams(RedisSettings(url=url))
    return streams, streams.stream("noop", record=Noop, partition_by="i", size=SIZE)


async def send(url: str, events: int, chunk: int, *, many: bool = False) -> Mapping[str, float]:
    """Send events, ``chunk`` in each call, including their creation; with ``many``, all by one call
    of `send_many`."""
    streams, stream = declare(url)
    await stream.send(Noop(i=0))
    started = time.perf_counter()
    if many:
        await stream.send_many(Noop(i=i) for i in range(events))
    for at in range(0, 0 if many else events, chunk):
        await stream.send(*(Noop(i=i) for i in range(at, min(events, at + chunk))))
    took = time.perf_counter() - started
    await streams.link.close()
    return {"rate": events / took, "cpu_us": time.process_time() / events * 1e6}


async def work(url: str, events: int, chunk: int) -> Mapping[str, float]:
    """Process events, measured from the first to the last; in batches if ``chunk`` is over 1."""
    streams, stream = declare(url)
    done = asyncio.Event()
    count = 0
    first = cpu = 0.0

    def note(number: int) -> None:
        nonlocal count, first, cpu
        if not count:
            first, cpu = time.perf_counter(), time.process_time()
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
    result = {"rate": events / took, "cpu_us": (time.process_time() - cpu) / events * 1e6}
    serving.cancel()
    await asyncio.wait([serving])
    return result


ROLES: Mapping[str, Callable[[str, int, int], Awaitable[Mapping[str, float]]]] = {
    "send": send,
    "send_many": functools.partial(send, many=True),
    "send_single": lambda url, events, _: send(url, events, 1),
    "work": work,
}


async def main(role: str, url: str, events: str, chunk: str = "500") -> None:
    print(json.dumps(await ROLES[role](url, int(events), int(chunk))), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
    os._exit(0)

"""The memory of a sender, a worker and the server: ``python -m benchmarks.stream_memory``.

A sender fills a stream of bounded partitions as fast as possible, and a worker processes it. Prints
the memory of each process after every tenth of the events. Exits with status 1 if a process uses
more memory at the end than after two tenths, by more than ``--slack``.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence

import click
import redis

from benchmarks.redis_queues import server
from benchmarks.stream_roles import Noop, declare
from chancy.plugins.redis.streams.processing.events import Events

_STEPS = 10
#: Events of a partition, which bound the memory of the server.
_SIZE = 10_000


def resident_kb(pid: int) -> int:
    """Anonymous resident memory of a process, which the kernel cannot reclaim."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


async def send(url: str, events: int) -> None:
    streams, stream = declare(url, _SIZE)
    await stream.send_many((Noop(i=i) for i in range(events)), timeout_s=600)
    # Stay alive: the parent reads the memory once more at the end.
    await asyncio.to_thread(sys.stdin.read)
    await streams.link.close()


async def work(url: str, events: int, sender: subprocess.Popen[bytes]) -> list[Sequence[int]]:
    """Process events; returns the memory of sender, worker and server after each tenth."""
    streams, stream = declare(url, _SIZE)
    done = asyncio.Event()
    samples: list[Sequence[int]] = []
    count = 0

    def sample() -> None:
        with redis.Redis.from_url(url) as client:
            used = int(client.info("memory")["used_memory"]) // 1024
        samples.append((resident_kb(sender.pid), resident_kb(os.getpid()), used))
        sender_mb, worker_mb, server_mb = (kb / 1024 for kb in samples[-1])
        print(f"| {count:,} | {sender_mb:.1f} | {worker_mb:.1f} | {server_mb:.1f} |", flush=True)

    @streams.processor(stream, join_delay_s=0)
    async def noop(items: Events[Noop]) -> None:
        nonlocal count
        async for batch in items.records().take(100, within=0.1):
            before = count
            count += len(batch)
            if before * _STEPS // events != count * _STEPS // events:
                sample()
            if count >= events:
                done.set()

    serving = asyncio.create_task(streams.serve())
    await done.wait()
    serving.cancel()
    await asyncio.wait([serving])
    return samples


@click.command()
@click.option("--events", default=5_000_000, show_default=True)
@click.option("--slack", default=4.0, show_default=True, help="MiB that a process may gain.")
@click.option("--url", hidden=True)
def main(events: int, slack: float, url: str | None) -> None:
    """Measure the memory of streams over many events."""
    if url is not None:
        asyncio.run(send(url, events))
        return
    with server(()) as address:
        command = [sys.executable, "-m", "benchmarks.stream_memory", "--url", address]
        sender = subprocess.Popen([*command, "--events", str(events)], stdin=subprocess.PIPE)
        try:
            print("| events | sender MiB | worker MiB | server MiB |\n|---|---|---|---|")
            samples = asyncio.run(work(address, events, sender))
        finally:
            sender.kill()
            sender.communicate()
    gains = [(last - early) / 1024 for early, last in zip(samples[1], samples[-1], strict=True)]
    print(f"gained since the second tenth: {', '.join(f'{gain:+.1f}' for gain in gains)} MiB")
    sys.exit(max(gains) > slack)


if __name__ == "__main__":
    main()

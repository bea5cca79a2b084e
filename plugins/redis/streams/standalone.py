"""Runs streams in a process without a worker, so without a database."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

from chancy.plugins.redis.program import run_until_signalled
from chancy.plugins.redis.streams.group.leadership import RedisGate
from chancy.plugins.redis.streams.streams import Streams


async def serve(
    streams: Streams, only: Iterable[str] | None = None, *, lease_s: float = 16.0
) -> None:
    """Run processors and timers until cancelled; then release the owned partitions.

    :param only: names of the processors to run; all unless given.
    :param lease_s: seconds of the leader's lease, for functions that run ``on_leader``.
    :raises ConfigurationError: a name is not declared.
    """
    gate = RedisGate(streams.link, lease_s=lease_s)
    leading = asyncio.create_task(gate.serve(), name="leadership")
    try:
        await streams.serve(only, leader=gate)
        # Without work, wait: a process that exits would be restarted again and again.
        await asyncio.Event().wait()
    finally:
        leading.cancel()
        await asyncio.wait([leading])
        await streams.link.close()


def run(streams: Streams, only: Iterable[str] | None = None, *, lease_s: float = 16.0) -> None:
    """Run `serve` as the main program until SIGINT or SIGTERM, then shut down gracefully.

    A second signal interrupts the events in progress, which are delivered again, and releases the
    partitions. A third one, at least a second later, ends the process at once; other workers then
    wait until the leases end. If `Halt` ends it, the exit code is 5.

    :raises ConfigurationError: a name is not declared.
    """
    run_until_signalled(lambda: serve(streams, only, lease_s=lease_s), signals=2)
    if streams.exit.code:
        sys.exit(streams.exit.code)

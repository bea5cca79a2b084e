"""Runs streams in a process without a worker, so without a database."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterable

from chancy.plugins.redis.streams.group.leadership import RedisGate
from chancy.plugins.redis.streams.streams import Streams

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def serve(
    streams: Streams, only: Iterable[str] | None = None, *, lease_s: float = 16.0
) -> None:
    """Run processors and timers until cancelled; then release the owned partitions.

    :param only: names of the processors to run; all unless given.
    :param lease_s: seconds of the leader's lease, for functions that run ``on_leader``.
    :raises ConfigurationError: a name is not declared.
    """
    link = streams.link.another()
    gate = RedisGate(link, lease_s=lease_s)
    leading = asyncio.create_task(gate.serve(), name="leadership")
    try:
        await streams.serve(only, leader=gate)
        # Without work, wait: a process that exits would be restarted again and again.
        await asyncio.Event().wait()
    finally:
        leading.cancel()
        await asyncio.wait([leading])
        await link.close()


def run(streams: Streams, only: Iterable[str] | None = None, *, lease_s: float = 16.0) -> None:
    """Run `serve` as the main program until SIGINT or SIGTERM, then shut down gracefully.

    A second signal ends the process at once. If `Halt` ends it, the exit code is 5.

    :raises ConfigurationError: a name is not declared.
    """

    async def main() -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(serve(streams, only, lease_s=lease_s))

        def stop() -> None:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
            serving.cancel()

        for number in _SIGNALS:
            loop.add_signal_handler(number, stop)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    asyncio.run(main())
    if streams.exit.code:
        sys.exit(streams.exit.code)

"""Runs services in a process without a worker, so without a database."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from chancy.plugins.redis.services.services import Services

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: A terminal and the parent process may each send the same signal.
_SAME_S = 1.0


async def serve(services: Services) -> None:
    """Run services until cancelled; then stop and release them."""
    await services.serve()
    # Without work, wait: a process that exits would be restarted again and again.
    await asyncio.Event().wait()


def run(services: Services) -> None:
    """Run `serve` as the main program until SIGINT or SIGTERM, then shut down gracefully.

    Another signal at least a second later ends the process at once; the leases of services that
    still run then expire.
    """

    async def main() -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(serve(services))

        def stop() -> None:
            _end_at_the_next(loop)
            serving.cancel()

        for number in _SIGNALS:
            loop.add_signal_handler(number, stop)
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        asyncio.run(main())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_at_the_next(loop: asyncio.AbstractEventLoop) -> None:
    first = time.monotonic()

    def end(number: int, frame: object) -> None:
        if time.monotonic() - first >= _SAME_S:
            os._exit(128 + number)

    for number in _SIGNALS:
        loop.remove_signal_handler(number)
        # Not a handler of the loop, which a service may block.
        signal.signal(number, end)

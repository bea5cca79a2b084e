"""Running services in a process that has no worker, and so needs no database."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from chancy.plugins.redis.services.services import Services

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: A terminal and whoever started the program may each send it the same signal.
_SAME_S = 1.0


async def serve(services: Services) -> None:
    """Run services until cancelled; then stop them and give them back."""
    await services.serve()
    # Nothing to do is no end: a process that is started again and again helps nobody.
    await asyncio.Event().wait()


def run(services: Services) -> None:
    """`serve` as the main program: until SIGINT or SIGTERM, which let it end in order.

    Another signal a second later or more ends it at once; the leases of what still runs end by
    themselves then.
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
    told = time.monotonic()

    def end(number: int, frame: object) -> None:
        if time.monotonic() - told >= _SAME_S:
            os._exit(128 + number)

    for number in _SIGNALS:
        loop.remove_signal_handler(number)
        # Not of the loop, which a service may keep busy.
        signal.signal(number, end)

"""Running services in a process that has no worker, and so needs no database."""

from __future__ import annotations

import asyncio
import signal

from chancy.plugins.redis.services.services import Services

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def serve(services: Services) -> None:
    """Run services until cancelled; then stop them and give them back."""
    await services.serve()
    # Nothing to do is no end: a process that is started again and again helps nobody.
    await asyncio.Event().wait()


def run(services: Services) -> None:
    """`serve` as the main program: until SIGINT or SIGTERM, which let it end in order.

    A second signal ends it at once.
    """

    async def main() -> None:
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(serve(services))

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

"""Runs services in a process without a worker, so without a database."""

from __future__ import annotations

import asyncio

from chancy.plugins.redis.program import run_until_signalled
from chancy.plugins.redis.services.services import Services


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
    run_until_signalled(lambda: serve(services), signals=1)

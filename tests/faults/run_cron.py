"""The program of a worker that fires ticks: ``python -m tests.faults.run_cron DSN LEASE_S``.

Runs no jobs. Prints ``ready`` once it serves. With a lease of 0 there is no leader election, and
every such process fires ticks.
"""

from __future__ import annotations

import asyncio
import sys

from chancy import Chancy, Plugin, Worker
from chancy.plugins.cron import Cron
from chancy.plugins.leadership import Leadership


async def run(dsn: str, lease_s: float) -> None:
    """Run the worker until a signal arrives."""
    plugins: list[Plugin] = [Cron(poll_s=0.2, keep_ticks=10_000)]
    if lease_s:
        plugins.append(Leadership(lease_s=lease_s))
    chancy = Chancy(dsn, plugins=plugins, no_default_plugins=True)
    async with chancy, Worker(chancy, queues=[]) as worker:
        worker.catch_signals()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await worker.wait_for_shutdown()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], float(sys.argv[2])))

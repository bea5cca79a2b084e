"""The program of a worker that can be killed: ``python -m tests.plugins.batch.run_worker DSN``."""

from __future__ import annotations

import asyncio
import random
import sys

from chancy import Chancy, Queue, Worker, job
from chancy.plugins.batch import Batches
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries
from chancy.retry import Constant

BATCHES = Batches(sweep_s=0.5)
APPS: list[Chancy] = []


@job(queue="batches", max_attempts=50)
async def act() -> None:
    await asyncio.sleep(random.uniform(0, 0.02))


@job(queue="batches", max_attempts=1)
async def fail() -> None:
    raise ValueError("as it is told to")


@job(queue="batches", max_attempts=50)
async def add(count: int) -> None:
    """Adds jobs to its batch."""
    await BATCHES.add(APPS[0], [act.job() for _ in range(count)])
    await asyncio.sleep(random.uniform(0, 0.05))


@job(queue="batches", max_attempts=50)
async def called() -> None:
    """A callback."""


def application(dsn: str) -> Chancy:
    return Chancy(
        dsn,
        queues=[Queue(name="batches", executor="async", concurrency=16)],
        plugins=[
            Leadership(lease_s=1.5),
            Recovery(sweep_s=0.3),
            Retries(Constant(0.05)),
            BATCHES,
        ],
        no_default_plugins=True,
    )


async def run(dsn: str) -> None:
    """Work until a signal comes."""
    chancy = application(dsn)
    APPS.append(chancy)
    async with chancy:
        worker = Worker(chancy, heartbeat_s=0.4, heartbeat_timeout_s=2.0)
        async with worker:
            worker.catch_signals()
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    # The job is the module's, not the script's.
    from tests.plugins.batch import run_worker as run_batch_worker

    asyncio.run(run_batch_worker.run(sys.argv[1]))

"""An application on a Redis queue, and `main` for worker processes of it."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from chancy import Chancy, Queue, Worker, current_job, job
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.relay import adoption as moves
from chancy.plugins.retry import Retries
from chancy.retry import Exponential

QUEUE = Queue(
    name="errands",
    executor="async",
    concurrency=20,
    broker="redis",
    broker_options={"history": "all"},
)


def enter(book: str, number: int) -> None:
    """One write, which outlasts a kill."""
    with open(book, "ab", buffering=0) as file:
        file.write(b"%d\n" % number)


@job(queue="errands", max_attempts=1)
async def errand(book: str, number: int) -> int:
    """Writes its number into a book, and how far it is; each tenth fails then."""
    enter(book, number)
    current_job().progress(0.5)
    await asyncio.sleep(0.05)
    if number % 10 == 0:
        raise ValueError("as it should")
    return number


@job(queue="errands", max_attempts=3)
async def long_errand(book: str, seconds: float) -> int:
    """Holds up all that its worker does but its beats; gives the process that it ran in."""
    enter(book, os.getpid())
    time.sleep(seconds)  # noqa: ASYNC251 - it is meant to hold up
    return os.getpid()


def make(dsn: str, url: str) -> Chancy:
    plugins = [
        RedisPlugin(url=url),
        Leadership(lease_s=1.0),
        Recovery(sweep_s=0.2),
        Retries(Exponential()),
    ]
    return Chancy(dsn, queues=[QUEUE], plugins=plugins, no_default_plugins=True, pool_size=3)


async def main() -> None:
    # What a dead worker has taken from Postgres is given to another soon.
    moves.LEASE_S = 1.0
    async with (
        make(os.environ["CHANCY_DSN"], os.environ["REDIS_URL"]) as chancy,
        Worker(chancy, heartbeat_s=0.2, heartbeat_timeout_s=1.0),
    ):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()

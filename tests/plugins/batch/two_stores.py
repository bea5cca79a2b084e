"""Batches with queues in Postgres and in Redis, and a worker that can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy, Job, Settlement, Worker, current_job, job
from chancy.broker.transaction import Transaction
from chancy.plugins.batch import Batches
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisPlugin
from tests.plugins.workflow.running import ASYNC, SOON
from tests.plugins.workflow.two_stores import BRIEF, FAST, enter


@job(max_attempts=9)
async def act(book: str, name: str) -> None:
    """Writes its name into the book."""
    enter(book, name)


@job()
async def call(book: str) -> None:
    """A callback."""
    enter(book, current_job().meta["batch"]["on"])


class Dying(Batches):
    """Kills the worker after it has written outcomes, before the settlement is committed."""

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await super().settling(tx, batch)
        os.kill(os.getpid(), signal.SIGKILL)


async def die(dsn: str, url: str) -> None:
    async with working(dsn, url, Dying()):
        await asyncio.Event().wait()


@asynccontextmanager
async def application(dsn: str, url: str, batches: Batches) -> AsyncGenerator[Chancy]:
    plugins = [RedisPlugin(url=url), batches, SOON, DeadLetters(sweep_s=0.1), Recovery(sweep_s=0.2)]
    queues = [ASYNC, FAST, BRIEF]
    async with Chancy(dsn, queues=queues, plugins=plugins, no_default_plugins=True) as chancy:
        for queue in (FAST, BRIEF):
            await chancy.declare(queue)
        yield chancy


@asynccontextmanager
async def working(dsn: str, url: str, batches: Batches) -> AsyncGenerator[Chancy]:
    async with application(dsn, url, batches) as chancy, worker(chancy):
        yield chancy


def worker(chancy: Chancy, heartbeat_timeout_s: float = 30.0) -> Worker:
    return Worker(chancy, heartbeat_s=0.4, heartbeat_timeout_s=heartbeat_timeout_s)


def there(made: Job[Any], queue: str = "fast") -> Job[Any]:
    """A job for a queue of Redis."""
    return made.with_queue(queue)

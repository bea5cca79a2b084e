"""An application with queues in Postgres and in Redis."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from chancy import Chancy, Job, Queue, Worker
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.workflow import Workflows
from tests.plugins.workflow.running import ASYNC, SOON

FAST = Queue(name="fast", executor="async", broker="redis")
#: A queue without history.
BRIEF = Queue(name="brief", executor="async", broker="redis", keep_finished=False)


def enter(book: str, name: str) -> None:
    """One write, which outlasts a kill."""
    with open(book, "ab", buffering=0) as file:
        file.write(f"{name}\n".encode())


@asynccontextmanager
async def working(dsn: str, url: str, flows: Workflows) -> AsyncGenerator[Chancy]:
    plugins = [RedisPlugin(url=url), flows, SOON, DeadLetters(sweep_s=0.1)]
    queues = [ASYNC, FAST, BRIEF]
    async with Chancy(dsn, queues=queues, plugins=plugins, no_default_plugins=True) as chancy:
        for queue in (FAST, BRIEF):
            await chancy.declare(queue)
        async with Worker(chancy):
            yield chancy


def fast(made: Job[Any], queue: str = "fast") -> Job[Any]:
    return made.with_queue(queue)

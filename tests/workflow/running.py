"""What the tests of workflows share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from chancy import Chancy, Plugin, Queue, Worker
from chancy.plugins.retry import Constant, Jitter, Retry
from chancy.plugins.workflow import Workflows

ASYNC = Queue(name="async", executor="async")
SOON = Retry(Constant(delay_s=0.01, jitter=Jitter.NONE))


def execute(dsn: str, statement: str, *parameters: object) -> list[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(statement.encode(), parameters)
        return [] if found.description is None else found.fetchall()


@asynccontextmanager
async def working(
    dsn: str, flows: Workflows, *plugins: Plugin, queue: Queue = ASYNC
) -> AsyncGenerator[Chancy]:
    """An application with a worker of one queue."""
    given = [flows, SOON, *plugins]
    async with Chancy(dsn, queues=[queue], plugins=given) as chancy, Worker(chancy):
        yield chancy

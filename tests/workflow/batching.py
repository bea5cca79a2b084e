"""What the tests of batches share."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from chancy import Chancy, Plugin, Queue, Worker
from chancy.plugins.batch import Batches
from tests.workflow.running import ASYNC, SOON, execute

__all__ = ["ASYNC", "execute", "working"]


@asynccontextmanager
async def working(
    dsn: str, batches: Batches, *plugins: Plugin, queue: Queue = ASYNC
) -> AsyncGenerator[Chancy]:
    """An application with a worker of one queue."""
    given = [batches, SOON, *plugins]
    async with Chancy(dsn, queues=[queue], plugins=given) as chancy, Worker(chancy):
        yield chancy

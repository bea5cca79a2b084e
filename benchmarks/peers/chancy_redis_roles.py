"""The roles of chancy with a Redis queue, from this checkout."""

from __future__ import annotations

import os

from benchmarks.control import SCHEMA
from benchmarks.jobs import noop
from benchmarks.peers import chancy_roles
from chancy import Chancy, Queue, Worker
from chancy.plugins.redis import RedisPlugin

#: The environment variable with the DSN of Postgres, which stores the queues and the workers.
POSTGRES = "CHANCY_BENCH_POSTGRES"
QUEUE = Queue(name="bench", executor="async", broker="redis")


class Roles(chancy_roles.Roles):
    """Default settings."""

    async def set_up(self) -> None:
        async with self._application() as app:
            await app.migrate()
            await app.declare(QUEUE)

    async def open(self, sessions: int) -> None:
        self._make = noop.job.with_queue(QUEUE.name)
        self._app = self._application()
        await self._app.__aenter__()

    async def work(self) -> None:
        app = self._application()
        async with app, Worker(app, queues=[QUEUE.name]) as worker:
            self._worker = worker
            self._announce()
            await worker.wait_for_shutdown()

    def _application(self) -> Chancy:
        return Chancy(
            os.environ[POSTGRES],
            schema=SCHEMA,
            plugins=[RedisPlugin(url=self.dsn)],
            allow=["benchmarks.jobs.*"],
        )

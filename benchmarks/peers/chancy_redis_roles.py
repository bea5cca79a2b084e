"""The roles of chancy with a Redis queue, from this checkout."""

from __future__ import annotations

import os

from benchmarks.peers import chancy_roles
from benchmarks.session import SCHEMA
from chancy import Chancy, Queue
from chancy.plugins.redis import RedisPlugin

#: The environment variable with the DSN of Postgres, which stores the queues and the workers.
POSTGRES = "CHANCY_BENCH_POSTGRES"
QUEUE = Queue(name="bench", executor="async", broker="redis")


class Roles(chancy_roles.Roles):
    """Default settings."""

    queue = QUEUE.name

    def application(self) -> Chancy:
        return Chancy(
            os.environ[POSTGRES],
            schema=SCHEMA,
            plugins=[RedisPlugin(url=self.dsn)],
            allow=["benchmarks.jobs.*"],
        )

    async def set_up(self) -> None:
        async with self.application() as app:
            await app.migrate()
            await app.declare(QUEUE)

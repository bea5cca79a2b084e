# pyright: reportMissingImports=false
"""The roles of pgqueuer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks.peers.peer import LATER_S, Peer


def _name(queue: int) -> str:
    """Its queues are entrypoints."""
    return f"noop_{queue}"


class Roles(Peer):
    async def set_up(self) -> None:
        await self.open(1)
        await self._queries.install()

    async def open(self, sessions: int) -> None:
        driver: Any
        if sessions == 1:
            driver = AsyncpgDriver(await asyncpg.connect(self.dsn))
        else:
            pool = await asyncpg.create_pool(self.dsn, min_size=sessions, max_size=sessions)
            driver = AsyncpgPoolDriver(pool)
        self._queries = Queries(driver)

    async def push(self, number: int) -> None:
        await self._queries.enqueue(_name(0), b'{"number":%d}' % number)

    async def push_many(self, numbers: Sequence[int]) -> None:
        load = self.workload
        payloads = [json.dumps(load.arguments(number)).encode() for number in numbers]
        names = [_name(number % load.queues) for number in numbers]
        priorities = [number % load.priorities for number in numbers]
        after = [timedelta(seconds=LATER_S)] * len(payloads) if load.later else None
        await self._queries.enqueue(names, payloads, priorities, after)

    async def work(self) -> None:
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.dsn)))

        async def noop(job: Any) -> None:
            await self.workload.run(json.loads(job.payload)["number"])

        for queue in range(self.workload.queues):
            queuer.entrypoint(_name(queue), concurrency_limit=self.settings.get("limit", 0))(noop)
        self.ready()
        await queuer.run(batch_size=self.settings["batch"])

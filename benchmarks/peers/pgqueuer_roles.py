# pyright: reportMissingImports=false
"""The roles of pgqueuer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

from benchmarks.peers.peer import Peer, ran


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
        await self._queries.enqueue("noop", b'{"number":%d}' % number)

    async def push_many(self, numbers: Sequence[int]) -> None:
        payloads = [b'{"number":%d}' % number for number in numbers]
        await self._queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    async def work(self) -> None:
        queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self.dsn)))

        async def noop(job: Any) -> None:
            ran(json.loads(job.payload)["number"])

        queuer.entrypoint("noop", concurrency_limit=self.settings.get("limit", 0))(noop)
        self.ready()
        await queuer.run(batch_size=self.settings["batch"])

# pyright: reportMissingImports=false
"""The roles of oban."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from oban import Oban, worker
from oban.schema import install

from benchmarks.peers.peer import Peer, ran


class Noop:
    async def process(self, job: Any) -> None:
        ran(job.args["number"])


_worker: Any = worker(queue="default")(Noop)


class Roles(Peer):
    async def set_up(self) -> None:
        pool = await Oban.create_pool(self.dsn, min_size=1, max_size=2)
        await install(pool)
        await pool.close()

    async def open(self, sessions: int) -> None:
        self._oban = await self._make({})

    async def push(self, number: int) -> None:
        await self._oban.enqueue(_worker.new({"number": number}))

    async def push_many(self, numbers: Sequence[int]) -> None:
        await self._oban.enqueue_many([_worker.new({"number": number}) for number in numbers])

    async def work(self) -> None:
        async with await self._make({"default": self.settings["concurrency"]}):
            self.ready()
            await asyncio.Event().wait()

    async def _make(self, queues: Mapping[str, int]) -> Any:
        pool = await Oban.create_pool(self.dsn, min_size=4, max_size=10)
        return Oban(pool=pool, queues=queues)

# pyright: reportMissingImports=false
"""The roles of oban."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from oban import Oban, worker
from oban.schema import install

from benchmarks.peers.peer import LATER_S, Peer, Workload


class Noop:
    workload: Workload

    async def process(self, job: Any) -> None:
        await self.workload.run(job.args["number"])


_worker: Any = worker(queue="queue_0")(Noop)


class Roles(Peer):
    def __init__(self, dsn: str, settings: Mapping[str, Any]) -> None:
        super().__init__(dsn, settings)
        Noop.workload = self.workload

    async def set_up(self) -> None:
        pool = await Oban.create_pool(self.dsn, min_size=1, max_size=2)
        await install(pool)
        await pool.close()

    async def open(self, sessions: int) -> None:
        self._oban = await self._make({})

    async def push(self, number: int) -> None:
        await self._oban.enqueue(self._job(number))

    async def push_many(self, numbers: Sequence[int]) -> None:
        await self._oban.enqueue_many([self._job(number) for number in numbers])

    def _job(self, number: int) -> Any:
        load = self.workload
        later = {"scheduled_in": LATER_S} if load.later else {}
        return _worker.new(
            load.arguments(number),
            priority=number % load.priorities,
            queue=f"queue_{number % load.queues}",
            **later,
        )

    async def work(self) -> None:
        each = self.settings["concurrency"]
        async with await self._make({f"queue_{n}": each for n in range(self.workload.queues)}):
            self.ready()
            await asyncio.Event().wait()

    async def _make(self, queues: Mapping[str, int]) -> Any:
        pool = await Oban.create_pool(self.dsn, min_size=4, max_size=10)
        return Oban(pool=pool, queues=queues)

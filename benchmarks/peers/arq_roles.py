# pyright: reportMissingImports=false
"""The roles of arq."""

from __future__ import annotations

import logging
from typing import Any

from arq import Worker, create_pool
from arq.connections import RedisSettings
from arq.worker import func

from benchmarks.peers.peer import Peer, ran


async def noop(context: Any, number: int) -> None:
    ran(number)


class Roles(Peer):
    concurrency = 50

    async def open(self, sessions: int) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(self.dsn))

    async def push(self, number: int) -> None:
        await self._pool.enqueue_job("noop", number)

    async def work(self) -> None:
        logging.getLogger("arq").setLevel(logging.ERROR)
        worker = Worker(
            [func(noop, name="noop")],
            redis_settings=RedisSettings.from_dsn(self.dsn),
            max_jobs=self.settings["max_jobs"],
            poll_delay=self.settings["poll"],
            handle_signals=False,
        )
        self.ready()
        await worker.async_run()

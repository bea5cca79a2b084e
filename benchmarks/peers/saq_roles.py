# pyright: reportMissingImports=false
"""The roles of saq, over Postgres or over Redis."""

from __future__ import annotations

import logging
from typing import Any

from saq import Queue, Worker

from benchmarks.peers.peer import Peer, ran


async def noop(context: Any, *, number: int) -> None:
    ran(number)


class Roles(Peer):
    concurrency = 50

    async def set_up(self) -> None:
        queue = await self._connect()
        await queue.disconnect()

    async def open(self, sessions: int) -> None:
        self._queue = await self._connect()

    async def push(self, number: int) -> None:
        await self._queue.enqueue("noop", number=number)

    async def work(self) -> None:
        logging.getLogger("saq").setLevel(logging.ERROR)
        worker = Worker(
            await self._connect(),
            functions=[("noop", noop)],
            concurrency=self.settings["concurrency"],
        )
        self.ready()
        await worker.start()

    async def _connect(self) -> Any:
        sessions = {"min_size": 4, "max_size": 20} if self.dsn.startswith("postgres") else {}
        queue = Queue.from_url(self.dsn, **sessions)
        await queue.connect()
        return queue

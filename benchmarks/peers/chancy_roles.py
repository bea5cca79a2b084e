"""The roles of chancy, from this checkout, through its public API."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from benchmarks.control import SCHEMA
from benchmarks.jobs import noop
from benchmarks.peers.peer import Peer
from chancy import Chancy, Queue, Worker


class Roles(Peer):
    """Default settings, except for the history of the queue."""

    orderly = True
    _app: Chancy
    _worker: Worker | None = None

    def application(self) -> Chancy:
        return Chancy(self.dsn, schema=SCHEMA, allow=["benchmarks.jobs.*"])

    async def set_up(self) -> None:
        name = self.settings["queue"]
        async with self.application() as app:
            await app.declare(Queue(name=name, executor="async", keep_finished=name == "kept"))

    async def open(self, sessions: int) -> None:
        self._make = noop.job.with_queue(self.settings["queue"])
        self._app = self.application()
        await self._app.__aenter__()

    async def push(self, number: int) -> None:
        await self._app.push(self._make(number=number))

    async def push_many(self, numbers: Sequence[int]) -> None:
        await self._app.push_many([self._make(number=number) for number in numbers])

    async def work(self) -> None:
        app = self.application()
        async with app, Worker(app, queues=[self.settings["queue"]]) as worker:
            self._worker = worker
            self._announce()
            await worker.wait_for_shutdown()

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(0)
        if self._worker is None:
            os._exit(0)
        self._worker.shut_down()

    def _announce(self) -> None:
        assert self._worker is not None
        if self._worker.listening:
            self.ready()
        else:
            asyncio.get_running_loop().call_later(0.01, self._announce)

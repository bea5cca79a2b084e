"""The roles of chancy, from this checkout, through its public API."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.jobs import fails_once, nap, noop, taking
from benchmarks.peers.peer import LATER_S, Peer
from benchmarks.session import SCHEMA
from chancy import Chancy, Job, Plugin, Queue, Worker
from chancy.plugins.workflow import Workflow, chain


class Roles(Peer):
    """Default settings, except for the history of the queue."""

    orderly = True
    queue = ""
    _app: Chancy
    _worker: Worker | None = None

    def __init__(self, dsn: str, settings: Mapping[str, Any]) -> None:
        super().__init__(dsn, settings)
        name, count = settings.get("queue", self.queue), self.workload.queues
        self._queues = [name] if count == 1 else [f"{name}{number}" for number in range(count)]

    def application(self) -> Chancy:
        allow = ["benchmarks.jobs.*"]
        return Chancy(self.dsn, schema=SCHEMA, allow=allow, plugins=self._plugins())

    def _plugins(self) -> Sequence[Plugin]:
        if not self.settings.get("mode"):
            return ()
        # Not needed in other modes, whose memory is measured.
        from benchmarks.observers import plugins

        return plugins(self.settings["mode"])

    async def set_up(self) -> None:
        keep = self.settings["queue"] == "kept"
        async with self.application() as app:
            await app.migrate()
            for name in self._queues:
                await app.declare(Queue(name=name, executor="async", keep_finished=keep))

    async def open(self, sessions: int) -> None:
        self._make = noop.job.with_queue(self._queues[0])
        self._app = self.application()
        await self._app.__aenter__()

    async def push(self, number: int) -> None:
        await self._app.push(self._make(number=number))

    async def push_many(self, numbers: Sequence[int]) -> None:
        if self.settings.keys() <= {"queue", "mode"}:
            await self._app.push_many([self._make(number=number) for number in numbers])
        else:
            await self._app.push_many(self._loaded(number) for number in numbers)

    async def push_chain(self, steps: int) -> int:
        await self._app.push(chain("chain", *(self._make(number=n) for n in range(steps))))
        return steps

    async def push_fan(self, steps: int) -> int:
        flow = Workflow("fan").add(self._make(number=steps), "out")
        names = [f"step {number}" for number in range(steps)]
        for number, name in enumerate(names):
            flow.add(self._make(number=number), name, after="out")
        flow.add(self._make(number=steps + 1), "in", after=names)
        await self._app.push(flow)
        return len(flow)

    def _loaded(self, number: int) -> Job:
        """A job of a workload other than plain no-ops."""
        load = self.workload
        job = noop.job(number=number)
        if load.text:
            job = taking.job(number=number, text=load.text)
        elif load.sleep_s:
            job = nap.job(number=number, ms=int(1_000 * load.sleep_s))
        elif load.failing and number % load.failing == 0:
            job = fails_once.job(number=number)
        if load.later:
            job = job.with_queue("later").with_delay(LATER_S)
        else:
            job = job.with_queue(self._queues[number % load.queues])
        return job.with_priority(number % load.priorities)

    async def work(self) -> None:
        app = self.application()
        async with app, Worker(app, queues=self._queues) as worker:
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

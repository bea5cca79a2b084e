# pyright: reportMissingImports=false
"""The roles of procrastinate."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import procrastinate

from benchmarks.peers.peer import LATER_S, Peer

_SESSIONS = 20


class Roles(Peer):
    def __init__(self, dsn: str, settings: Mapping[str, Any]) -> None:
        super().__init__(dsn, settings)
        logging.getLogger("procrastinate").setLevel(logging.ERROR)
        connector = procrastinate.PsycopgConnector(conninfo=dsn, max_size=_SESSIONS)
        self._app = procrastinate.App(connector=connector)

        async def noop(number: int, text: str = "") -> None:
            await self.workload.run(number)

        self._task = self._app.task(name="noop")(noop)

    async def set_up(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()

    async def open(self, sessions: int) -> None:
        await self._app.open_async()

    async def push(self, number: int) -> None:
        await self._task.defer_async(number=number)

    async def push_many(self, numbers: Sequence[int]) -> None:
        keys = self.settings.get("keys")
        load = self.workload
        if keys is None:
            for part in range(load.priorities * load.queues):  # one priority and queue a call
                those = numbers[part :: load.priorities * load.queues]
                task = self._task.configure(
                    priority=part % load.priorities,
                    queue=f"queue {part % load.queues}",
                    schedule_in={"seconds": LATER_S} if load.later else None,
                )
                if those:
                    await task.batch_defer_async(*map(load.arguments, those))
            return
        for key in range(min(keys, len(numbers))):  # one lock a call
            task = self._task.configure(lock=f"key {key}")
            await task.batch_defer_async(*({"number": number} for number in numbers[key::keys]))

    async def work(self) -> None:
        async with self._app.open_async():
            self.ready()
            await self._app.run_worker_async(
                concurrency=self.settings["concurrency"], delete_jobs="never"
            )

# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false
"""The roles of taskiq over a stream of Redis."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from benchmarks.peers.peer import Peer, ran


class Roles(Peer):
    concurrency = 50

    def __init__(self, dsn: str, settings: Mapping[str, Any]) -> None:
        super().__init__(dsn, settings)
        logging.getLogger("taskiq").setLevel(logging.ERROR)
        self._broker = RedisStreamBroker(dsn)

        @self._broker.task(task_name="noop")  # type: ignore[untyped-decorator]
        async def noop(number: int) -> None:
            ran(number)

        self._task: Any = noop

    async def set_up(self) -> None:
        await self._broker.startup()

    async def open(self, sessions: int) -> None:
        await self._broker.startup()

    async def push(self, number: int) -> None:
        await self._task.kiq(number)

    async def work(self) -> None:
        self._broker.is_worker_process = True
        self.ready()
        most = self.settings["max_async_tasks"]
        await run_receiver_task(self._broker, max_async_tasks=most, run_startup=True)

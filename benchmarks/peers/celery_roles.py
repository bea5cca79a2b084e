# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false
"""The roles of celery over Redis, without results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from celery import Celery

from benchmarks.peers.peer import Peer, ran


class Roles(Peer):
    own_loop = True

    def __init__(self, dsn: str, settings: Mapping[str, Any]) -> None:
        super().__init__(dsn, settings)
        self._app = Celery("bench", broker=dsn)
        self._app.conf.update(
            task_ignore_result=True,
            worker_prefetch_multiplier=settings["prefetch"],
            broker_connection_retry_on_startup=True,
        )

        @self._app.task(name="noop", ignore_result=True)  # type: ignore[untyped-decorator]
        def noop(number: int) -> None:
            ran(number)

        self._task: Any = noop

    async def push(self, number: int) -> None:
        self._task.delay(number)

    async def push_many(self, numbers: Sequence[int]) -> None:
        with self._app.producer_pool.acquire() as producer:
            for number in numbers:
                self._task.apply_async((number,), producer=producer)

    def work_sync(self) -> None:
        self.ready()
        pool = ["-P", self.settings["pool"], "-c", "1", "-l", "ERROR"]
        less = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        self._app.worker_main(["worker", *pool, *less])

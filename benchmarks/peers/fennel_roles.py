# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false
"""The roles of fennel, without results."""

from __future__ import annotations

from typing import Any

from fennel import App
from fennel.worker.executor import Executor

from benchmarks.peers.peer import Peer, ran


class Roles(Peer):
    concurrency = 50
    own_loop = True

    async def open(self, sessions: int) -> None:
        self._task = self._declare()[1]

    async def push(self, number: int) -> None:
        await self._task.delay(number)

    def work_sync(self) -> None:
        app = self._declare()[0]
        self.ready()
        Executor(app).start()

    def _declare(self) -> tuple[Any, Any]:
        app = App(
            name="bench",
            redis_url=self.dsn,
            interface="async",
            processes=1,
            results_enabled=False,
            log_level="critical",
            autodiscover="",
            concurrency=self.settings["concurrency"],
            prefetch_count=self.settings["prefetch"],
        )

        @app.task(name="noop")  # type: ignore[untyped-decorator]
        async def noop(number: int) -> None:
            ran(number)

        return app, noop

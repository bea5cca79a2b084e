"""The roles of chancy 0.26 from the package index, which its environment imports as chancy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from benchmarks.peers.peer import Peer, ran

# Not by name: readers and tools would resolve it to the package in this checkout.
_chancy: Any = import_module("chancy")
_LOG = logging.getLogger("chancy")


async def _noop(*, number: int) -> None:
    ran(number)


# The worker imports the function by its name.
_noop.__qualname__ = _noop.__name__ = "noop"
noop: Any = _chancy.job(queue="default")(_noop)


class Roles(Peer):
    def __init__(self, dsn: str, settings: Mapping[str, Any]) -> None:
        super().__init__(dsn, settings)
        _LOG.setLevel(logging.WARNING)
        plugins = []
        if settings.get("workflows"):
            plugins = [import_module(f"chancy.plugins.{one}") for one in ("leadership", "workflow")]
            plugins = [
                plugins[0].Leadership(poll_interval=1),
                plugins[1].WorkflowPlugin(polling_interval=1),
            ]
        self._app = _chancy.Chancy(dsn, log=_LOG, plugins=plugins)

    async def set_up(self) -> None:
        async with self._app:
            await self._app.migrate()

    async def open(self, sessions: int) -> None:
        await self._app.__aenter__()

    async def push(self, number: int) -> None:
        await self._app.push(noop.job.with_kwargs(number=number))

    async def push_many(self, numbers: Sequence[int]) -> None:
        jobs = [noop.job.with_kwargs(number=number) for number in numbers]
        async for _ in self._app.push_many(jobs, batch_size=5_000):
            pass

    async def push_chain(self, steps: int) -> int:
        flows = import_module("chancy.plugins.workflow")
        jobs = [noop.job.with_kwargs(number=number) for number in range(steps)]
        chain = flows.Workflow("chain")
        for number, one in enumerate(jobs):
            chain.add(f"s{number}", one, [f"s{number - 1}"] if number else [])
        await flows.WorkflowPlugin.push(self._app, chain)
        return steps

    async def work(self) -> None:
        queue = _chancy.Queue(
            "default",
            concurrency=self.settings["concurrency"],
            executor="chancy.executors.asyncex.AsyncExecutor",
            polling_interval=1,
            eager_polling=True,
        )
        async with self._app:
            await self._app.declare(queue, upsert=True)
            async with _chancy.Worker(self._app) as worker:
                self.ready()
                await worker.wait_for_shutdown()

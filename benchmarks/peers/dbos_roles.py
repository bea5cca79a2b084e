# pyright: reportMissingImports=false
"""The roles of DBOS: a job is a workflow in a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dbos import DBOS, DBOSClient

from benchmarks.peers.peer import Peer, ran

_QUEUE = "bench"


class Roles(Peer):
    concurrency = 16

    def __init__(self, dsn: str, settings: Mapping[str, Any]) -> None:
        super().__init__(dsn, settings)
        DBOS(
            config={
                "name": "bench",
                "system_database_url": dsn,
                "log_level": "ERROR",
                "application_version": "1",
                "run_admin_server": False,
                "sys_db_pool_size": 20,
            }
        )

        async def noop(number: int) -> None:
            ran(number)

        DBOS.workflow(name="noop")(noop)

    async def set_up(self) -> None:
        DBOS.launch()
        DBOS.destroy()

    async def open(self, sessions: int) -> None:
        self._client = DBOSClient(system_database_url=self.dsn)

    async def push(self, number: int) -> None:
        await self._client.enqueue_async({"queue_name": _QUEUE, "workflow_name": "noop"}, number)

    async def work(self) -> None:
        DBOS.listen_queues([_QUEUE])
        DBOS.launch()
        await DBOS.register_queue_async(
            _QUEUE,
            concurrency=self.settings.get("limit"),
            limiter={"limit": rate, "period": 1} if (rate := self.settings.get("rate")) else None,
            worker_concurrency=self.settings["concurrency"],
            polling_interval_sec=self.settings["poll"],
        )
        self.ready()
        await asyncio.Event().wait()

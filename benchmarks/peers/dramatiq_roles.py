# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false
"""The roles of dramatiq over Redis. Its actors are plain functions, run by threads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.peers.peer import Peer, ran


class Roles(Peer):
    def __init__(self, dsn: str, settings: Mapping[str, Any]) -> None:
        super().__init__(dsn, settings)
        self._broker = RedisBroker(url=dsn)
        dramatiq.set_broker(self._broker)

        @dramatiq.actor(actor_name="noop")  # type: ignore[untyped-decorator]
        def noop(number: int) -> None:
            ran(number)

        self._actor: Any = noop

    async def push(self, number: int) -> None:
        self._actor.send(number)

    async def push_many(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._actor.send(number)

    async def work(self) -> None:
        worker = dramatiq.Worker(
            self._broker, worker_threads=self.settings["threads"], worker_timeout=100
        )
        worker.start()
        self.ready()
        await asyncio.Event().wait()

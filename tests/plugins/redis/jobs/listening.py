"""A worker's ear, without the worker."""

from __future__ import annotations

import asyncio

from chancy.broker.notices import Notice, NoticeKind, Subscription
from tests.support.waiting import eventually


class Listening:
    """As a worker listens: it hears the first notice as it arrives."""

    def __init__(self, subscription: Subscription) -> None:
        self.heard: list[Notice] = []
        self._subscription = subscription
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            self.heard += await self._subscription.receive(60, self.heard.append)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._subscription.close()


async def woken(listening: Listening) -> None:
    async def heard() -> bool:
        return Notice(NoticeKind.WAKE, "default") in listening.heard

    await eventually(heard)

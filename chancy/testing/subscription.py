"""Notices inside one process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from chancy.broker.notices import Notice, NoticeKind, Topic
from chancy.errors import BrokerUnavailable
from chancy.testing.store import MemoryStore

#: Notices that a subscription keeps for a slow reader: the last ones.
MAX_NOTICES = 10_000


class MemorySubscription:
    """Hears the notices of every broker of a store, on one topic."""

    def __init__(self, store: MemoryStore, topic: Topic = Topic.WORK) -> None:
        self._store = store
        self._finished = topic is Topic.FINISHED
        self._heard: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._event = asyncio.Event()
        self._open = True
        store.listeners.append(self._hear)

    def _hear(self, notice: Notice) -> None:
        if (notice.kind is NoticeKind.FINISHED) == self._finished:
            self._heard.append(notice)
            self._event.set()

    async def receive(
        self, timeout_s: float, first: Callable[[Notice], None] | None = None
    ) -> list[Notice]:
        if not self._heard and self._open:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._event.wait()
            except TimeoutError:
                return []
        return await self.probe(timeout_s)

    async def probe(self, timeout_s: float) -> list[Notice]:
        if not self._open:
            raise BrokerUnavailable("the subscription is closed")
        heard = list(self._heard)
        self._heard.clear()
        self._event.clear()
        return heard

    async def close(self) -> None:
        if self._open:
            self._open = False
            self._event.set()
            self._store.listeners.remove(self._hear)

"""The notifications that a session has received and nobody has asked for yet."""

from __future__ import annotations

import asyncio
from collections import deque

#: Payloads kept between two calls of `Connection.notifications`.
CAPACITY = 10_000


class Inbox:
    """A bounded buffer of payloads that one task can wait on."""

    __slots__ = ("_arrived", "_dropped", "_payloads")

    def __init__(self) -> None:
        self._payloads: deque[str] = deque()
        self._dropped = False
        self._arrived = asyncio.Event()

    def put(self, payload: str) -> None:
        """Keep a payload, or remember that one was dropped."""
        if len(self._payloads) < CAPACITY:
            self._payloads.append(payload)
        else:
            self._dropped = True
        self._arrived.set()

    def wake(self) -> None:
        """End the wait although nothing came: the session is gone."""
        self._arrived.set()

    async def wait(self, timeout_s: float) -> None:
        """Return when there is something, after `wake`, or at the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            pass

    def take(self) -> list[str]:
        """Everything, in the order of arrival; an empty payload last if some were dropped."""
        taken = list(self._payloads)
        if self._dropped:
            taken.append("")
        self._payloads.clear()
        self._dropped = False
        self._arrived.clear()
        return taken

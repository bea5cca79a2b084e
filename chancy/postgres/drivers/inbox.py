"""The notifications that a session has received and nobody has asked for yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: Payloads kept between two calls of `Connection.notifications`.
CAPACITY = 10_000


class Inbox:
    """A bounded buffer of payloads that one task can wait on."""

    __slots__ = ("_dropped", "_ended", "_first", "_payloads", "_waiter")

    def __init__(self) -> None:
        self._payloads: deque[str] = deque()
        self._dropped = False
        self._ended = False
        self._first: Callable[[str], None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, payload: str) -> None:
        """Keep a payload, or remember that one was dropped."""
        if len(self._payloads) < CAPACITY:
            self._payloads.append(payload)
        else:
            self._dropped = True
        first, self._first = self._first, None
        if first is not None:
            first(payload)
        self._wake()

    def wake(self) -> None:
        """End the wait although nothing came: the session is gone."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, timeout_s: float, first: Callable[[str], None] | None = None) -> None:
        """Return when there is something, after `wake`, or at the timeout.

        :param first: is told the first payload as it comes, if it has to be waited for.
        """
        if self._payloads or self._dropped or self._ended:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._first = first
        timer = loop.call_later(timeout_s, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._first = self._waiter = None

    def take(self) -> list[str]:
        """Everything, in the order of arrival; an empty payload last if some were dropped."""
        taken = list(self._payloads)
        if self._dropped:
            taken.append("")
        self._payloads.clear()
        self._dropped = self._ended = False
        return taken

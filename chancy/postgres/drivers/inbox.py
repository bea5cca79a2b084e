"""A buffer for notifications that a session has received and not returned yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

#: Maximum number of payloads kept between two calls of `Connection.notifications`.
CAPACITY = 10_000


class Inbox:
    """A bounded buffer of payloads that one task can wait for."""

    __slots__ = ("_ended", "_handle", "_payloads", "_waiter")

    def __init__(self) -> None:
        self._payloads: list[str] = []
        self._ended = False
        self._handle: Callable[[str], bool] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, payload: str) -> None:
        """Add a payload, unless it is handled as it arrives, or the buffer is full."""
        handle, self._handle = self._handle, None
        if handle is not None and handle(payload):
            self._handle = handle
            return
        if len(self._payloads) < CAPACITY:
            self._payloads.append(payload)
        self._wake()

    def wake(self) -> None:
        """End a wait without a payload: the session is closed."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self, timeout_s: float, handle: Callable[[str], bool] | None = None) -> None:
        """Wait for a payload, a call of `wake`, or the timeout.

        :param handle: called with each payload as it arrives; the wait continues while it returns
            True.
        """
        if self._payloads or self._ended:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._handle = handle
        timer = loop.call_later(timeout_s, self._wake)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._handle = self._waiter = None

    def take(self) -> list[str]:
        """Remove and return all payloads in order of arrival."""
        taken, self._payloads, self._ended = self._payloads, [], False
        return taken

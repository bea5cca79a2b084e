"""The lifetime of an application: how often it is open, and in which event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from chancy.broker.contract import Broker
from chancy.broker.event_loop import check_loop
from chancy.results.background import JobWaiter


class Lifetime:
    """Opens a broker at the first `enter`, and closes it at the last `leave`.

    :param before: closed before the broker.
    :param calls: called before ``before`` is closed, the last one first.
    """

    def __init__(
        self,
        broker: Broker,
        before: JobWaiter,
        calls: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        self._broker = broker
        self._before = before
        self._calls = calls
        self._inside = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Set when closing ends; None while the broker is not being closed.
        self._closed: asyncio.Event | None = None

    async def enter(self) -> None:
        """Open the broker, unless it is open. Each call that returns needs a `leave`.

        :raises ConfigurationError: the application is open in another event loop, whose
            connections cannot be used in this one.
        :raises BrokerUnavailable: the server cannot be reached.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not None:
            check_loop(self._loop, self._broker)
        self._loop = loop
        self._inside += 1
        try:
            while self._closed is not None:
                await self._closed.wait()
            self._loop = loop
            await self._broker.open()
        except BaseException:
            self._inside -= 1
            if not self._inside and self._closed is None:
                self._loop = None
            raise

    async def leave(self) -> None:
        """Undo one `enter`; the last call closes the broker."""
        self._inside -= 1
        if self._inside:
            return
        closed = self._closed = asyncio.Event()
        try:
            async with AsyncExitStack() as stack:
                stack.push_async_callback(self._broker.close)
                stack.push_async_callback(self._before.close)
                for call in self._calls:
                    stack.push_async_callback(call)
        finally:
            self._closed = None
            if not self._inside:
                self._loop = None
            closed.set()

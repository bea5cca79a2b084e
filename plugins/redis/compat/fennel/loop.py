"""The application that sync and async calls of a process share, in a loop of its own."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from chancy.app.app import Chancy
from chancy.results.background import BackgroundLoop

T = TypeVar("T")


class Loop:
    """Opens an application at the first call, and closes it at the exit of the process.

    A forked child opens another one.

    :param make: creates an application.
    """

    def __init__(self, make: Callable[[], Chancy]) -> None:
        self._make = make
        self._background = BackgroundLoop(self._close)
        self._chancy: Chancy | None = None
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        atexit.register(self.close)

    def run(self, work: Callable[[Chancy], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the open application, and wait for its result.

        :raises RuntimeError: called in the loop itself, which would deadlock.
        """
        return self._background.run(self._on_open(work))

    async def wait(self, work: Callable[[Chancy], Coroutine[Any, Any, T]]) -> T:
        """`run` for a caller in an event loop, this one or another."""
        return await asyncio.wrap_future(self._background.submit(self._on_open(work)))

    def close(self) -> None:
        """Close the application if it was opened. A later call opens a new one."""
        self._background.close()

    async def _on_open(self, work: Callable[[Chancy], Coroutine[Any, Any, T]]) -> T:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._chancy, self._opening = loop, None, asyncio.Lock()
        async with self._opening:
            if self._chancy is None:
                made = self._make()
                await made.__aenter__()
                self._chancy = made
        return await work(self._chancy)

    async def _close(self) -> None:
        chancy, self._chancy = self._chancy, None
        if chancy is not None:
            await chancy.__aexit__(None, None, None)

"""One event loop per process, in a thread, shared by sync and async callers."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from chancy.app.app import Chancy

T = TypeVar("T")

#: Seconds that closing the connections may take at the end of the process.
_PATIENCE_S = 5.0


class Loop:
    """Opens an application at the first call, and closes it at the exit of the process.

    A forked child starts a new loop, since threads do not survive a fork.

    :param make: creates an application.
    """

    def __init__(self, make: Callable[[], Chancy]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._chancy: Chancy | None = None
        self._opening: asyncio.Lock | None = None

    def start(self, work: Callable[[Chancy], Coroutine[Any, Any, T]]) -> Future[T]:
        """Start a coroutine with the open application; the future is usable in any thread."""
        return asyncio.run_coroutine_threadsafe(self._on_open(work), self._running())

    def run(self, work: Callable[[Chancy], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine with the open application, and wait for its result.

        :raises RuntimeError: called in the loop itself, which would deadlock.
        """
        if threading.current_thread().name == _NAME:
            raise RuntimeError("sync calls cannot be made inside the event loop of sync calls")
        return self.start(work).result()

    async def wait(self, work: Callable[[Chancy], Coroutine[Any, Any, T]]) -> T:
        """`run` for a caller in an event loop, this one or another."""
        return await asyncio.wrap_future(self.start(work))

    def close(self) -> None:
        """Close the application if it was opened. A later call opens a new one."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is None or self._pid != os.getpid():
                return
        asyncio.run_coroutine_threadsafe(self._end(), loop).result(_PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._pid, self._chancy, self._opening = os.getpid(), None, asyncio.Lock()
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_turn, args=(self._loop,), name=_NAME, daemon=True).start()
                atexit.register(self.close)
            return self._loop

    async def _on_open(self, work: Callable[[Chancy], Coroutine[Any, Any, T]]) -> T:
        assert self._opening is not None
        async with self._opening:
            if self._chancy is None:
                made = self._make()
                await made.__aenter__()
                self._chancy = made
        return await work(self._chancy)

    async def _end(self) -> None:
        own = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not own]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
        chancy, self._chancy = self._chancy, None
        if chancy is not None:
            await chancy.__aexit__(None, None, None)


_NAME = "fennel calls"


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()

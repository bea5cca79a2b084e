"""Waiting for jobs from threads without an event loop: a loop of our own beside them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from chancy.errors import BrokerUnavailable
from chancy.job import QueuedJob

#: Seconds for which the end of the thread waits for what it has cancelled.
_END_S = 5.0

T = TypeVar("T")


class Finishes(Protocol):
    """What waits for jobs; see `chancy.finishes.Finishes`."""

    async def wait(self, id: UUID, timeout_s: float | None) -> QueuedJob: ...
    async def close(self) -> None: ...


class Opened(Protocol):
    """What is opened in the loop and closed with it: a broker."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


B = TypeVar("B", bound=Opened)


class Background(Generic[B]):
    """A thread with an event loop, begun by the first who waits. From any thread.

    :param make: makes the broker and what waits for its jobs; called in the loop.
    """

    def __init__(self, make: Callable[[], tuple[B, Finishes]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._made: tuple[B, Finishes] | None = None

    def begin(self, id: UUID, timeout_s: float | None) -> Future[QueuedJob]:
        """Begin to wait until a job is finished; see `chancy.reference.Reference.wait`."""

        async def work(broker: B, finishes: Finishes) -> QueuedJob:
            return await finishes.wait(id, timeout_s)

        return self._submit(self._run(work))

    def run(self, work: Callable[[B, Finishes], Awaitable[T]]) -> T:
        """Have something done in the loop, and wait for it."""
        doing = self._submit(self._run(work))
        try:
            return doing.result()
        except BaseException:
            doing.cancel()
            raise

    async def _run(self, work: Callable[[B, Finishes], Awaitable[T]]) -> T:
        if self._made is None:
            self._made = self._make()
        broker, finishes = self._made
        await broker.open()
        return await work(broker, finishes)

    def _submit(self, work: Awaitable[T]) -> Future[T]:
        async def awaited() -> T:
            try:
                return await work
            except asyncio.CancelledError:
                if self._loop is not asyncio.get_running_loop():
                    raise BrokerUnavailable("the application was closed during a wait") from None
                raise

        return asyncio.run_coroutine_threadsafe(awaited(), self._running())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            # Threads do not come along when a process forks.
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._made, self._pid = asyncio.new_event_loop(), None, os.getpid()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="chancy waiting", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """End the waits of other threads, and the thread."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None or self._pid != os.getpid():
            return
        asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    async def _close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            broker, finishes = made
            await finishes.close()
            await broker.close()
        # Who has not come so far as to wait, since the broker is still being opened.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_END_S)

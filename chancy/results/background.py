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
from chancy.job.definition import QueuedJob

#: Seconds for which the end of the thread waits for what it has cancelled.
_END_S = 5.0

T = TypeVar("T")


class JobWaiter(Protocol):
    """What waits for jobs; see `chancy.results.waiter.CompletionWaiter`."""

    async def wait(self, id: UUID, timeout_s: float | None) -> QueuedJob: ...
    async def close(self) -> None: ...


class Opened(Protocol):
    """What is opened in the loop and closed with it: a broker."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


B = TypeVar("B", bound=Opened)


class _Beside(Generic[B]):
    """One life of the thread, with its loop and what was made there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self.made: tuple[B, JobWaiter] | None = None
        self.closing = False
        self.thread = threading.Thread(
            target=self.loop.run_forever, name="chancy waiting", daemon=True
        )
        self.thread.start()


class Background(Generic[B]):
    """A thread with an event loop, begun by the first who waits. From any thread.

    :param make: makes the broker and what waits for its jobs; called in the loop.
    """

    def __init__(self, make: Callable[[], tuple[B, JobWaiter]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._beside: _Beside[B] | None = None

    def begin(self, id: UUID, timeout_s: float | None) -> Future[QueuedJob]:
        """Begin to wait until a job is finished; see `chancy.results.reference.Reference.wait`."""

        async def work(broker: B, finishes: JobWaiter) -> QueuedJob:
            return await finishes.wait(id, timeout_s)

        return self._submit(work)

    def run(self, work: Callable[[B, JobWaiter], Awaitable[T]]) -> T:
        """Have something done in the loop, and wait for it."""
        doing = self._submit(work)
        try:
            return doing.result()
        except BaseException:
            doing.cancel()
            raise

    async def _run(self, beside: _Beside[B], work: Callable[[B, JobWaiter], Awaitable[T]]) -> T:
        try:
            if beside.made is None:
                beside.made = self._make()
            broker, finishes = beside.made
            await broker.open()
            return await work(broker, finishes)
        except asyncio.CancelledError:
            if beside.closing:
                raise BrokerUnavailable("the application was closed during a wait") from None
            raise

    def _submit(self, work: Callable[[B, JobWaiter], Awaitable[T]]) -> Future[T]:
        # Under the lock: what comes before a close is in its loop before the close is, which ends
        # it, and what comes after it gets a loop of its own.
        with self._lock:
            beside = self._beside
            # Threads do not come along when a process forks.
            if beside is None or beside.pid != os.getpid():
                beside = self._beside = _Beside()
            return asyncio.run_coroutine_threadsafe(self._run(beside, work), beside.loop)

    def close(self) -> None:
        """End the waits of other threads, and the thread."""
        with self._lock:
            beside, self._beside = self._beside, None
        if beside is None or beside.pid != os.getpid():
            return
        beside.closing = True
        try:
            asyncio.run_coroutine_threadsafe(_close(beside), beside.loop).result()
        finally:
            beside.loop.call_soon_threadsafe(beside.loop.stop)
            beside.thread.join()
            beside.loop.close()


async def _close(beside: _Beside[B]) -> None:
    made, beside.made = beside.made, None
    try:
        if made is not None:
            broker, finishes = made
            await finishes.close()
            await broker.close()
    finally:
        # Who has not come so far as to wait, since the broker is still being opened.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_END_S)

"""Calls of threads without an event loop, in the event loop of a background thread."""

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

#: Seconds that closing waits for cancelled tasks.
_CLOSE_S = 5.0

T = TypeVar("T")


class JobWaiter(Protocol):
    """The protocol of a waiter; see `chancy.results.waiter.CompletionWaiter`."""

    async def wait(self, id: UUID, timeout_s: float | None) -> QueuedJob: ...
    async def close(self) -> None: ...


class Opened(Protocol):
    """A resource that is opened in the loop and closed with it, such as a broker."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


B = TypeVar("B", bound=Opened)


class _LoopThread(Generic[B]):
    """One run of the thread: its event loop, broker and waiter."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self.made: tuple[B, JobWaiter] | None = None
        self.closing = False
        self.thread = threading.Thread(
            target=self.loop.run_forever, name="chancy calls", daemon=True
        )
        self.thread.start()


class Background(Generic[B]):
    """A background thread with an event loop, started by the first call. Safe from any thread.

    :param make: creates the broker and the waiter for its jobs; called in the loop.
    """

    def __init__(self, make: Callable[[], tuple[B, JobWaiter]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._running: _LoopThread[B] | None = None
        self._closed = False
        # The loop of the process that this one was forked from: its sessions belong to the parent.
        self._inherited: _LoopThread[B] | None = None

    def begin(self, id: UUID, timeout_s: float | None) -> Future[QueuedJob]:
        """Start waiting for a job to finish; see `chancy.results.reference.Reference.wait`."""

        async def work(broker: B, waiter: JobWaiter) -> QueuedJob:
            return await waiter.wait(id, timeout_s)

        return self._submit(work)

    def run(self, work: Callable[[B, JobWaiter], Awaitable[T]]) -> T:
        """Run a coroutine function in the loop, and return its result."""
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def _run(
        self, running: _LoopThread[B], work: Callable[[B, JobWaiter], Awaitable[T]]
    ) -> T:
        try:
            if running.made is None:
                running.made = self._make()
            broker, waiter = running.made
            await broker.open()
            return await work(broker, waiter)
        except asyncio.CancelledError:
            if running.closing:
                raise BrokerUnavailable("the application was closed during a call") from None
            raise

    def _submit(self, work: Callable[[B, JobWaiter], Awaitable[T]]) -> Future[T]:
        # Under the lock: work submitted before a close is in the loop before the close, which
        # cancels it.
        with self._lock:
            if self._closed:
                raise BrokerUnavailable("the application was closed")
            running = self._running
            # A forked process does not inherit the thread.
            if running is None or running.pid != os.getpid():
                self._inherited = self._inherited or running
                running = self._running = _LoopThread()
            return asyncio.run_coroutine_threadsafe(self._run(running, work), running.loop)

    def close(self) -> None:
        """Cancel the calls of other threads, and stop the thread. Later calls raise."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is None or running.pid != os.getpid():
            return
        running.closing = True
        try:
            asyncio.run_coroutine_threadsafe(_close(running), running.loop).result()
        finally:
            running.loop.call_soon_threadsafe(running.loop.stop)
            running.thread.join()
            running.loop.close()


async def _close(running: _LoopThread[B]) -> None:
    made, running.made = running.made, None
    try:
        if made is not None:
            broker, waiter = made
            await waiter.close()
            await broker.close()
    finally:
        # Tasks that are not waiting yet, since the broker is still being opened.
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_CLOSE_S)

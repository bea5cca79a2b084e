"""Calls of threads without an event loop, in the event loop of a background thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar
from uuid import UUID

from chancy.errors import BrokerUnavailable
from chancy.fork_lock import ForkLock
from chancy.job.definition import QueuedJob

T = TypeVar("T")


class JobWaiter(Protocol):
    """The protocol of a waiter; see `chancy.results.waiter.CompletionWaiter`."""

    async def wait(
        self, id: UUID, timeout_s: float | None, *, stored: bool = False
    ) -> QueuedJob: ...
    async def close(self) -> None: ...


class _RunningThread:
    """One run of the thread."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self.futures: set[Future[Any]] = set()
        self.thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self.thread.start()


class BackgroundLoop:
    """A background thread with an event loop, started by the first call, and again after a fork.

    Safe from any thread.

    :param disconnect: closes what was opened in the loop; called in it before it ends.
    """

    def __init__(
        self, disconnect: Callable[[], Coroutine[Any, Any, None]], *, name: str = "chancy calls"
    ) -> None:
        self._disconnect = disconnect
        self._name = name
        self._lock = ForkLock()
        self._running: _RunningThread | None = None
        # The loop of the process that this one was forked from: its sessions belong to the parent.
        self._inherited: _RunningThread | None = None
        #: Whether it was closed for good.
        self.closed = False

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop.

        :raises BrokerUnavailable: it was closed for good.
        """
        # Under the lock: work submitted before a close is in the loop before the close.
        with self._lock:
            if self.closed:
                work.close()
                raise BrokerUnavailable("the application was closed")
            running = self._running
            # A forked process does not inherit the thread.
            if running is None or running.pid != os.getpid():
                self._inherited = self._inherited or running
                running = self._running = _RunningThread(self._name)
            future = asyncio.run_coroutine_threadsafe(work, running.loop)
            running.futures.add(future)
        future.add_done_callback(running.futures.discard)
        return future

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and return its result.

        :raises RuntimeError: called in the loop itself, which would deadlock.
        """
        if self._running is not None and self._running.thread is threading.current_thread():
            work.close()
            raise RuntimeError("sync calls cannot be made inside the event loop of sync calls")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self, *, for_good: bool = False) -> None:
        """Disconnect and end the thread, unless something still runs in it.

        :param for_good: end it in any case; later calls raise.
        """
        with self._lock:
            self.closed = self.closed or for_good
            running = self._running
            if running is None or running.pid != os.getpid():
                return
            # A call that has returned may still be among them for a moment.
            if not for_good and not all(future.done() for future in list(running.futures)):
                return
            self._running = None
        try:
            asyncio.run_coroutine_threadsafe(self._disconnect(), running.loop).result()
        finally:
            running.loop.call_soon_threadsafe(running.loop.stop)
            running.thread.join()
            running.loop.close()

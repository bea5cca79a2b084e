"""Calls of threads without an event loop, in the event loop of a background thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from chancy.errors import BrokerUnavailable
from chancy.fork_lock import ForkLock
from chancy.job.definition import QueuedJob

#: Seconds that closing waits for cancelled tasks.
_CLOSE_S = 5.0

T = TypeVar("T")


class JobWaiter(Protocol):
    """The protocol of a waiter; see `chancy.results.waiter.CompletionWaiter`."""

    async def wait(
        self, id: UUID, timeout_s: float | None, *, stored: bool = False
    ) -> QueuedJob: ...
    async def close(self) -> None: ...


class Opened(Protocol):
    """A resource that is opened in the loop and closed with it, such as a broker."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...


B = TypeVar("B", bound=Opened)


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
            if running.futures and not for_good:
                return
            self._running = None
        try:
            asyncio.run_coroutine_threadsafe(self._disconnect(), running.loop).result()
        finally:
            running.loop.call_soon_threadsafe(running.loop.stop)
            running.thread.join()
            running.loop.close()


class Background(Generic[B]):
    """The broker of a background thread, and the waiter for its jobs. Safe from any thread.

    :param make: creates both; called in the loop of the thread.
    """

    def __init__(self, make: Callable[[], tuple[B, JobWaiter]]) -> None:
        self._make = make
        self._loop = BackgroundLoop(self._close)
        # By loop: those of a parent process must stay open there.
        self._made: dict[asyncio.AbstractEventLoop, tuple[B, JobWaiter]] = {}

    def begin(
        self, id: UUID, timeout_s: float | None, *, stored: bool = False
    ) -> Future[QueuedJob]:
        """Start waiting for a job to finish; see `chancy.results.reference.Reference.wait`."""

        return self._loop.submit(
            self._run(lambda _, waiter: waiter.wait(id, timeout_s, stored=stored))
        )

    def run(self, work: Callable[[B], Awaitable[T]], *, waits: bool = False) -> T:
        """Run a coroutine function with the broker, and return its result. It may always wait."""
        return self._loop.run(self._run(lambda broker, _: work(broker)))

    def close(self) -> None:
        """Cancel the calls of other threads, and stop the thread. Later calls raise."""
        self._loop.close(for_good=True)

    async def _run(self, work: Callable[[B, JobWaiter], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        try:
            if loop not in self._made:
                self._made[loop] = self._make()
            broker, waiter = self._made[loop]
            await broker.open()
            return await work(broker, waiter)
        except asyncio.CancelledError:
            if not self._loop.closed:
                raise
            if (task := asyncio.current_task()) is not None:
                # Its caller may be gone, too: asyncio would log an error that nobody reads.
                task.add_done_callback(_read)
            raise BrokerUnavailable("the application was closed during a call") from None

    async def _close(self) -> None:
        made = self._made.pop(asyncio.get_running_loop(), None)
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


def _read(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()

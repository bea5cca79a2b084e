"""An event loop in a thread: heartbeats that a busy loop must not delay, and calls of threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class _RunningThread:
    """One run of the thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.pid = os.getpid()
        self.futures: set[Future[Any]] = set()
        self.thread = threading.Thread(
            target=self.loop.run_forever, name="chancy redis", daemon=True
        )
        self.thread.start()


class BackgroundLoop:
    """Starts its thread at the first call, and again after a fork. Safe from any thread.

    :param disconnect: closes the connections of the loop; called in it before it ends.
    """

    def __init__(self, disconnect: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._disconnect = disconnect
        self._lock = threading.Lock()
        self._running: _RunningThread | None = None
        # The loop of the parent process, whose connections must stay open there.
        self._inherited: _RunningThread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop."""
        with self._lock:
            running = self._running
            if running is None or running.pid != os.getpid():
                self._inherited = self._inherited or running
                running = self._running = _RunningThread()
            future = asyncio.run_coroutine_threadsafe(work, running.loop)
            running.futures.add(future)
        future.add_done_callback(running.futures.discard)
        return future

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop; return its result.

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

    def close(self) -> None:
        """Disconnect and end the thread, unless something still runs in it."""
        with self._lock:
            running = self._running
            if running is None or running.pid != os.getpid() or running.futures:
                return
            self._running = None
        asyncio.run_coroutine_threadsafe(self._disconnect(), running.loop).result()
        running.loop.call_soon_threadsafe(running.loop.stop)
        running.thread.join()
        running.loop.close()

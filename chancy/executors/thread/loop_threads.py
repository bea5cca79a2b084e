"""Threads for `asyncio.to_thread` in jobs, which never block the exit of a worker."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from time import monotonic
from typing import ParamSpec, TypeVar

logger = logging.getLogger("chancy.executors")

#: Seconds that running calls get at shutdown.
PARTING_S = 2.0
#: Number of threads, as in the default executor of a loop.
_MOST = min(32, (os.cpu_count() or 1) + 4)

P = ParamSpec("P")
T = TypeVar("T")


class LoopThreads(ThreadPoolExecutor):
    """The default executor of a loop in which jobs run.

    The interpreter joins the threads of the parent class at exit, and so does `shutdown`, both
    without a time limit: a call that hangs would keep a worker from ever exiting. The threads here
    are daemon threads. A loop accepts only subclasses of `ThreadPoolExecutor`.

    :param name: prefix of the threads' names.
    :param most: maximum number of threads.
    """

    def __init__(self, name: str, most: int = _MOST) -> None:
        super().__init__(most)
        self._name = name
        self._most = most
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started: list[threading.Thread] = []
        self._unfinished = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in a thread, in the order of submission."""
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._lock:
            if self._closed:
                raise RuntimeError("the event loop of this thread has ended: it accepts no calls")
            self._unfinished += 1
            if self._unfinished > len(self._started) < self._most:
                self._started.append(self._start())
            self._calls.put(call)
        return future

    def _start(self) -> threading.Thread:
        name = f"{self._name}-{len(self._started) + 1}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        thread.start()
        return thread

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # otherwise kept alive until the next one
            with self._lock:
                self._unfinished -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. Waits at most 2 seconds; threads that still run are left behind.

        :param cancel_futures: ignored; submitted calls are made.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                for _ in self._started:
                    self._calls.put(None)
        if not wait:
            return
        until = monotonic() + PARTING_S
        for thread in self._started:
            thread.join(max(0.0, until - monotonic()))
        stuck = [thread.name for thread in self._started if thread.is_alive()]
        if stuck:
            logger.warning(
                "threads of `to_thread` calls of jobs did not end within %g s and are left behind: "
                "%s",
                PARTING_S,
                ", ".join(stuck),
            )

"""Threads behind `asyncio.to_thread` of jobs, which keep neither a worker nor its exit waiting."""

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

#: Seconds that calls which still run get at the end.
PARTING_S = 2.0
#: As many threads as a loop has by itself.
_MOST = min(32, (os.cpu_count() or 1) + 4)

P = ParamSpec("P")
T = TypeVar("T")


class LoopThreads(ThreadPoolExecutor):
    """The default executor of a loop in which jobs run.

    The threads of its parent class are joined by the interpreter when it exits, and by `shutdown`,
    both without limit: a call that hangs in one would keep a worker from ever ending. These are
    daemon threads. It has the public face of its parent, since a loop takes nothing else.

    :param name: how the threads' names begin.
    """

    def __init__(self, name: str) -> None:
        super().__init__(_MOST)
        self._name = name
        self._lock = threading.Lock()
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started: list[threading.Thread] = []
        self._unfinished = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have a thread make a call, in the order of submission."""
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
                raise RuntimeError("the loop of this thread has ended: no call can begin")
            self._unfinished += 1
            if self._unfinished > len(self._started) < _MOST:
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
            del call  # kept alive otherwise until the next one comes
            with self._lock:
                self._unfinished -= 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin no more calls. Waits at most 2 seconds: what still runs then is left behind.

        :param cancel_futures: changes nothing; the calls that have been submitted are made.
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
                "threads in which jobs called `to_thread` did not end within %g s, and are left "
                "behind: %s",
                PARTING_S,
                ", ".join(stuck),
            )

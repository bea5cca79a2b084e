"""Threads that run errands for one event loop.

They are daemon threads of our own, not a `concurrent.futures.ThreadPoolExecutor`: the interpreter
joins every thread of such a pool when it exits, so one job that hangs would keep a worker from
ever ending.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Generic, TypeVar

from chancy.executors import forks

logger = logging.getLogger("chancy.executors")

#: Seconds that threads without an errand get to end, their farewell included.
PARTING_S = 5.0

Result = TypeVar("Result")


class ThreadCall(Generic[Result]):
    """A call to be made by a thread, and the future of the loop that gets its result.

    ``late`` is called in the loop when the call ends although nobody waits for it any more.
    """

    __slots__ = ("_call", "_started", "future", "late")

    def __init__(self, call: Callable[[], Result], future: asyncio.Future[Result]) -> None:
        self._call = call
        self._started = threading.Lock()
        self.future = future
        self.late: Callable[[], None] | None = None

    def withdraw(self) -> bool:
        """Take the errand back. False if a thread has begun it; it then goes on to its end."""
        return self._started.acquire(blocking=False)

    def begin(self) -> bool:
        return self._started.acquire(blocking=False)

    def call(self) -> Result | BaseException:
        try:
            return self._call()
        except BaseException as error:
            return error

    def finish(self, result: Result | BaseException) -> None:
        """Hand the result over, in the loop. One that comes late is dropped."""
        if self.future.done():
            if inspect.iscoroutine(result):
                result.close()
            if self.late is not None:
                self.late()
            return
        if isinstance(result, StopIteration):  # a future refuses to hold one
            result = RuntimeError(f"the call raised StopIteration: {result.value!r}")
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


class ThreadPool:
    """At most ``size`` daemon threads, started when they are needed. Used from one loop.

    :param name: how the threads' names begin.
    :param farewell: called by each thread when it ends.
    """

    def __init__(self, size: int, name: str, farewell: Callable[[], None] | None = None) -> None:
        self._size = size
        self._name = name
        self._farewell = farewell
        self._errands: SimpleQueue[ThreadCall[object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0

    def submit(self, call: Callable[[], Result]) -> ThreadCall[Result]:
        """Have a thread make a call, in the order of submission."""
        loop = asyncio.get_running_loop()
        errand: ThreadCall[Result] = ThreadCall(call, loop.create_future())
        self._unfinished += 1
        if self._unfinished > len(self._threads) < self._size:
            self._threads.append(self._start(loop))
        self._errands.put(errand)  # type: ignore[arg-type]
        return errand

    def _start(self, loop: asyncio.AbstractEventLoop) -> threading.Thread:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, args=(loop,), name=name, daemon=True)
        thread.start()
        return thread

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        generation = forks.generation
        try:
            while (errand := self._errands.get()) is not None:
                result = errand.call() if errand.begin() else None
                if forks.generation != generation:
                    forks.end_copy()
                loop.call_soon_threadsafe(self._finish, errand, result)
                del errand, result  # kept alive otherwise until the next one comes
            if self._farewell is not None:
                self._farewell()
        except RuntimeError:
            if not loop.is_closed():
                raise

    def _finish(self, errand: ThreadCall[object], result: object) -> None:
        self._unfinished -= 1
        errand.finish(result)

    async def stop(self) -> None:
        """End the threads that are idle. One that is stuck is left behind, after a while also one
        that is stuck in its farewell."""
        for _ in self._threads:
            self._errands.put(None)
        until = monotonic() + PARTING_S
        # They end without a word. As many as have errands unfinished are stuck in those.
        while len(alive := [one for one in self._threads if one.is_alive()]) > self._unfinished:
            if monotonic() > until:
                names = ", ".join(thread.name for thread in alive)
                logger.warning(
                    "threads did not end within %g s, and are left behind: %s", PARTING_S, names
                )
                break
            await asyncio.sleep(0.002)
        self._threads = []

"""A pool of threads that make calls for one event loop.

It uses daemon threads, not a `concurrent.futures.ThreadPoolExecutor`: the interpreter joins every
thread of such an executor at exit, so a job that hangs would keep a worker from ever exiting.
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

#: Seconds that idle threads get to end, including their `on_exit` callback.
PARTING_S = 5.0

Result = TypeVar("Result")


class ThreadCall(Generic[Result]):
    """A call to be made by a thread, and the future of the loop that gets its result.

    ``late`` is called in the loop if the call ends after its future is done.
    """

    __slots__ = ("_call", "_started", "future", "late")

    def __init__(self, call: Callable[[], Result], future: asyncio.Future[Result]) -> None:
        self._call = call
        self._started = threading.Lock()
        self.future = future
        self.late: Callable[[], None] | None = None

    def withdraw(self) -> bool:
        """Withdraw the call; False if a thread has started it, which then runs it to its end."""
        return self._started.acquire(blocking=False)

    def start(self) -> bool:
        """Claim the call for a thread; False if it was withdrawn."""
        return self._started.acquire(blocking=False)

    def run(self) -> Result | BaseException:
        try:
            return self._call()
        except BaseException as error:
            return error

    def finish(self, result: Result | BaseException) -> None:
        """Set the result, in the loop. A late result is dropped."""
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
    """At most ``size`` daemon threads, started on demand. Used from one loop.

    :param name: prefix of the threads' names.
    :param on_exit: called by each thread when it ends.
    """

    def __init__(self, size: int, name: str, on_exit: Callable[[], None] | None = None) -> None:
        self._size = size
        self._name = name
        self._on_exit = on_exit
        self._calls: SimpleQueue[ThreadCall[object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished = 0

    def submit(self, call: Callable[[], Result]) -> ThreadCall[Result]:
        """Run a call in a thread, in the order of submission."""
        loop = asyncio.get_running_loop()
        thread_call: ThreadCall[Result] = ThreadCall(call, loop.create_future())
        self._unfinished += 1
        if self._unfinished > len(self._threads) < self._size:
            self._threads.append(self._start(loop))
        self._calls.put(thread_call)  # type: ignore[arg-type]
        return thread_call

    def _start(self, loop: asyncio.AbstractEventLoop) -> threading.Thread:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, args=(loop,), name=name, daemon=True)
        thread.start()
        return thread

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        generation = forks.generation
        try:
            while (call := self._calls.get()) is not None:
                result = call.run() if call.start() else None
                if forks.generation != generation:
                    forks.end_copy()
                loop.call_soon_threadsafe(self._finish, call, result)
                del call, result  # otherwise kept alive until the next one
            if self._on_exit is not None:
                self._on_exit()
        except RuntimeError:
            if not loop.is_closed():
                raise

    def _finish(self, call: ThreadCall[object], result: object) -> None:
        self._unfinished -= 1
        call.finish(result)

    async def stop(self) -> None:
        """Stop the idle threads.

        A thread that is stuck in a call is left behind, as is one that takes over 5 s to end.
        """
        for _ in self._threads:
            self._calls.put(None)
        until = monotonic() + PARTING_S
        # Threads end without a notification. As many as there are unfinished calls are stuck.
        while len(alive := [each for each in self._threads if each.is_alive()]) > self._unfinished:
            if monotonic() > until:
                names = ", ".join(thread.name for thread in alive)
                logger.warning(
                    "threads did not end within %g s and are left behind: %s", PARTING_S, names
                )
                break
            await asyncio.sleep(0.002)
        self._threads = []

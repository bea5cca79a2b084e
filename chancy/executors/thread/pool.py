"""A pool of threads that make calls for one event loop.

It uses daemon threads, not a `concurrent.futures.ThreadPoolExecutor`: the interpreter joins every
thread of such an executor at exit, so a job that hangs would keep a worker from ever exiting.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Generic, TypeVar

from chancy.executors import forks

logger = logging.getLogger("chancy.executors")

#: Seconds that idle threads get to end, including their `on_exit` callback.
PARTING_S = 5.0
#: Seconds between two collections of results while results keep coming.
_COLLECT_S = 0.001

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
        if not self._started.acquire(blocking=False):
            return False
        del self._call
        return True

    def start(self) -> bool:
        """Claim the call for a thread; False if it was withdrawn."""
        return self._started.acquire(blocking=False)

    def run(self) -> Result | BaseException:
        call = self._call
        # It often refers to this object. The garbage of such cycles took a third of the CPU time of
        # a drain.
        del self._call
        try:
            return call()
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

    Each hand-over of the interpreter's lock takes longer than a short call, so many short calls
    share one. A thread that takes a call wakes another one only while more calls wait, and only one
    at a time: calls that never wait are all made by the same thread. Results are collected when a
    thread runs out of calls and, while results keep coming, every millisecond.

    :param name: prefix of the threads' names.
    :param on_exit: called by each thread when it ends.
    """

    def __init__(self, size: int, name: str, on_exit: Callable[[], None] | None = None) -> None:
        self._size = size
        self._name = name
        self._on_exit = on_exit
        self._calls: deque[ThreadCall[object]] = deque()
        self._results: deque[tuple[ThreadCall[object], object]] = deque()
        self._threads: list[threading.Thread] = []
        # One lock for each idle thread, which waits for it. The thread that was last busy is last.
        self._idle: list[threading.Lock] = []
        self._waking = False  # a woken thread has yet to run; it wakes the next one
        self._stopping = False
        self._notified = False  # a collection of results is scheduled in the loop
        self._timed = False  # and one by a timer
        self._unfinished = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(self, call: Callable[[], Result]) -> ThreadCall[Result]:
        """Run a call in a thread, in the order of submission."""
        # `get_running_loop` reads the process id from the system, which takes 0.16 µs.
        loop = self._loop = self._loop or asyncio.get_running_loop()
        thread_call: ThreadCall[Result] = ThreadCall(call, loop.create_future())
        self._unfinished += 1
        self._calls.append(thread_call)  # type: ignore[arg-type]
        if not self._waking:
            self._wake_one()
        if self._unfinished > len(self._threads) < self._size:
            self._threads.append(self._start(loop))
        return thread_call

    def _start(self, loop: asyncio.AbstractEventLoop) -> threading.Thread:
        name = f"{self._name}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, args=(loop,), name=name, daemon=True)
        thread.start()
        return thread

    def _wake_one(self) -> None:
        """Wake an idle thread, if there is one. From any thread."""
        try:
            gate = self._idle.pop()
        except IndexError:
            return
        self._waking = True
        gate.release()

    # In the threads

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        generation = forks.generation
        gate = threading.Lock()
        gate.acquire()
        try:
            try:
                while (call := self._next(gate)) is not None:
                    result = call.run() if call.start() else None
                    if forks.generation != generation:
                        forks.end_copy()
                    self._results.append((call, result))
                    del call, result  # otherwise kept alive until the next one
                    if not self._notified and not (self._timed and self._calls):
                        self._notified = True
                        loop.call_soon_threadsafe(self._collect_notified)
            finally:
                if self._on_exit is not None:
                    self._on_exit()
        except RuntimeError:
            if not loop.is_closed():
                raise

    def _next(self, gate: threading.Lock) -> ThreadCall[object] | None:
        """Wait for a call; None if the thread is to end."""
        while True:
            try:
                call = self._calls.popleft()
            except IndexError:
                if self._stopping:
                    return None
                self._wait(gate)
                continue
            if self._calls and not self._waking:
                self._wake_one()
            return call

    def _wait(self, gate: threading.Lock) -> None:
        """Wait until woken, or until there is a call."""
        self._idle.append(gate)
        if self._calls or self._stopping:
            # It may have come before the gate was among the idle ones.
            try:
                self._idle.remove(gate)
            except ValueError:  # woken in the meantime
                pass
            else:
                return
        gate.acquire()
        self._waking = False

    # In the loop

    def _collect_notified(self) -> None:
        self._notified = False
        self._collect()
        if not self._timed:
            self._timed = True
            asyncio.get_running_loop().call_later(_COLLECT_S, self._collect_timed)

    def _collect_timed(self) -> None:
        if not self._collect():
            self._timed = False
            # A thread may have counted on the timer just before.
            if not self._collect():
                return
            self._timed = True
        asyncio.get_running_loop().call_later(_COLLECT_S, self._collect_timed)

    def _collect(self) -> bool:
        """Finish the calls that have ended. Returns whether there were any."""
        results = self._results
        found = bool(results)
        while results:
            call, result = results.popleft()
            self._unfinished -= 1
            call.finish(result)
        return found

    async def stop(self) -> None:
        """Stop the idle threads.

        A thread that is stuck in a call is left behind, as is one that takes over 5 s to end.
        """
        self._stopping = True
        while self._idle:
            self._wake_one()
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

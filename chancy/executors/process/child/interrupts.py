"""Interrupts the running job of an executor process, and nothing else in it.

Signals trigger the interruption: of the timer at the time limit, or of the worker. Their handlers
run in the main thread between any two of its steps. So a plain function gets `Interrupted` only
between its call and its return, only once, and not while it sends a frame. A coroutine's task is
cancelled.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from types import FrameType
from typing import TYPE_CHECKING, Any

from chancy.context.context import JobContext
from chancy.errors import Interrupted
from chancy.executors.process.call import ChildCall

if TYPE_CHECKING:
    import asyncio


class Interrupter:
    """Interrupts one job at a time. Used in the main thread."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._number = 0
        self._context: JobContext | None = None
        self._limit_s = 0.0
        self._deadline = 0.0
        self._previous: Any = None
        self._open = False
        self._held = 0
        self._pending = False
        self._task: asyncio.Task[Any] | None = None
        self._requests: dict[int, str] = {}
        self._why: str | None = None
        #: Whether the job was stopped, rather than ending by itself.
        self.stopped = False
        #: Whether that was at its time limit.
        self.timed_out = False

    @property
    def why(self) -> str:
        """Why the job was asked to stop."""
        return self._why or ""

    def job_started(self, call: ChildCall, context: JobContext) -> None:
        """Start the time limit of a job that is about to run; from now on it can be stopped."""
        self._why = None
        self.stopped = self.timed_out = self._pending = False
        self._context = context
        self._number = call.number
        if self._requests:
            requests = self._requests.items()
            self._requests = {number: why for number, why in requests if number >= call.number}
            if call.number in self._requests:
                self._interrupt(self._requests[call.number], at_limit=False)
        if call.time_s:
            self._limit_s = call.time_s
            self._deadline = time.monotonic() + call.time_s
            self._previous = signal.signal(signal.SIGALRM, self._alarm)
            signal.setitimer(signal.ITIMER_REAL, call.time_s)

    def job_ended(self) -> None:
        """Stop the time limit of a job that has ended; it cannot be stopped any more."""
        self._number = 0
        self._context = None
        if self._limit_s:
            self._limit_s = 0.0
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._previous or signal.SIG_DFL)

    def call(
        self, context: Context, function: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any:
        """Call a plain function.

        :raises Interrupted: the job is stopped, possibly just before or after the function runs.
        """
        try:
            self._open = True
            if self._why is not None:
                self._deliver()
            return context.run(function, **arguments)
        finally:
            self._open = False

    async def awaiting(self, value: Awaitable[Any]) -> Any:
        """Await a value; the task is cancelled if the job is stopped."""
        import asyncio

        self._task = asyncio.current_task()
        try:
            if self._why is not None:
                self._deliver()
            return await value
        finally:
            self._task = None

    def stop(self, number: int, why: str) -> None:
        """Stop a job at the request of the worker: the running job, or a later one."""
        if number == self._number:
            self._interrupt(why, at_limit=False)
        elif not self._number or number > self._number:
            self._requests[number] = why

    def stop_at_limit(self, number: int) -> None:
        """Stop a job at the request of the worker, if it still runs: its time limit has passed.

        The job may have set the timer of the process for itself.
        """
        if number == self._number:
            self._interrupt_at_limit()

    def hold(self) -> None:
        """Defer interruptions until `release`, while a frame is sent or received."""
        if threading.get_ident() == self._main:
            self._held += 1

    def release(self) -> None:
        if threading.get_ident() == self._main:
            self._held -= 1
            if self._pending and not self._held:
                self._pending = False
                self._deliver()

    def _alarm(self, signum: int, frame: FrameType | None) -> None:
        left_s = self._deadline - time.monotonic()
        if left_s > 0:  # an alarm of the job, which has replaced that of the limit
            signal.setitimer(signal.ITIMER_REAL, left_s)
        else:
            self._interrupt_at_limit()

    def _interrupt_at_limit(self) -> None:
        self._interrupt(f"its time limit of {self._limit_s:g} s has passed", at_limit=True)

    def _interrupt(self, why: str, *, at_limit: bool) -> None:
        if not self._number or self._why is not None:
            return
        self._why = why
        self.timed_out = at_limit
        if self._context is not None:
            self._context.ask_to_stop(why)
        self._deliver()

    def _deliver(self) -> None:
        if self._task is not None:
            # Not directly: the task may be in the middle of a step.
            self._task.get_loop().call_soon_threadsafe(self._cancel, self._task)
        elif self._held:
            self._pending = True
        elif self._open:
            self._open = False
            self.stopped = True
            raise Interrupted(self._why)

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        if task is self._task and not task.done():
            self.stopped = True
            task.cancel(self._why)

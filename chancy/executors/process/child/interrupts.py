"""Stops the job that runs in a child, and nothing else in it.

What stops it are signals: of the timer at its time limit, or of the parent, which wants it to end.
Their handlers run in the main thread between any two of its steps. So a plain function gets
`Interrupted` only between the moment it is called and the moment it has returned, only once, and
not while it is in the middle of a word to the parent; a coroutine's task is cancelled.
"""

from __future__ import annotations

import signal
import threading
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
    """Of one job at a time. Used in the main thread."""

    def __init__(self) -> None:
        self._main = threading.get_ident()
        self._number = 0
        self._context: JobContext | None = None
        self._limit_s = 0.0
        self._before: Any = None
        self._open = False
        self._held = 0
        self._pending = False
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: dict[int, str] = {}
        self._why: str | None = None
        #: Whether the job was stopped, rather than ending by itself.
        self.stopped = False
        #: Whether that was at its time limit.
        self.timed_out = False

    @property
    def why(self) -> str:
        """Why the job was to stop."""
        return self._why or ""

    def begin(self, call: ChildCall, context: JobContext) -> None:
        """A job is about to run; from here on it can be stopped, and its time runs."""
        self._why = None
        self.stopped = self.timed_out = self._pending = False
        self._context = context
        self._number = call.number
        if self._asked:
            self._asked = {one: why for one, why in self._asked.items() if one >= call.number}
            if call.number in self._asked:
                self._strike(self._asked[call.number], at_limit=False)
        if call.time_s:
            self._limit_s = call.time_s
            self._before = signal.signal(signal.SIGALRM, self._alarm)
            signal.setitimer(signal.ITIMER_REAL, call.time_s)

    def end(self) -> None:
        """The job has ended, and cannot be stopped any more."""
        self._number = 0
        self._context = None
        if self._limit_s:
            self._limit_s = 0.0
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before or signal.SIG_DFL)

    def call(
        self, context: Context, function: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any:
        """Call a plain function. Raises `Interrupted` if it is stopped, also just before or after
        it runs."""
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

        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            if self._why is not None:
                self._deliver()
            return await value
        finally:
            self._task = None

    def stop(self, number: int, why: str) -> None:
        """The parent wants a job to stop: that which runs, or one that is to run next."""
        if number == self._number:
            self._strike(why, at_limit=False)
        elif not self._number or number > self._number:
            self._asked[number] = why

    def asked(self, number: int) -> str | None:
        """Why the parent wants a job to stop that had not begun when it said so."""
        return self._asked.pop(number, None)

    def hold(self) -> None:
        """Put a stop off until `let_go`: the job is in the middle of a word to the parent."""
        if threading.get_ident() == self._main:
            self._held += 1

    def let_go(self) -> None:
        if threading.get_ident() == self._main:
            self._held -= 1
            if self._pending and not self._held:
                self._pending = False
                self._deliver()

    def _alarm(self, signum: int, frame: FrameType | None) -> None:
        self._strike(f"its time limit of {self._limit_s:g} s has passed", at_limit=True)

    def _strike(self, why: str, *, at_limit: bool) -> None:
        if not self._number or self._why is not None:
            return
        self._why = why
        self.timed_out = at_limit
        if self._context is not None:
            self._context.ask_to_stop(why)
        self._deliver()

    def _deliver(self) -> None:
        if self._task is not None and self._loop is not None:
            # Not from here: the task may be in the middle of a step.
            self._loop.call_soon_threadsafe(self._cancel, self._task)
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

"""An attempt that a thread runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from inspect import iscoroutine
from typing import Any

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Raised, Released, TimedOut
from chancy.context.context import JobContext
from chancy.executors.invocation import reason_of
from chancy.executors.thread.pool import ThreadCall

logger = logging.getLogger("chancy.executors")

#: What a job raises because it was asked to stop.
_EXPECTED = ("chancy.errors.Interrupted", "asyncio.exceptions.CancelledError")


class ThreadRun:
    """An attempt in a thread. A plain function can only be asked to stop; a coroutine that the
    thread's own loop runs is cancelled.

    Used in the worker's loop, except for what is marked.

    :param left: called when the attempt ends although its thread goes on with it; the flag says
        whether its end is near, since it is a coroutine that was cancelled.
    """

    errand: ThreadCall[Outcome | Awaitable[Any]]

    def __init__(
        self, claim: Claim, job: JobContext, left: Callable[[ThreadRun, bool], None]
    ) -> None:
        self.claim = claim
        self.job = job
        self._left = left
        self._given: Outcome | None = None
        self._timer: asyncio.TimerHandle | None = None
        # What belongs to the coroutine, under the lock: two loops look at it.
        self._lock = threading.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._task_loop: asyncio.AbstractEventLoop | None = None
        self._asked = False
        self._cancelled = False

    async def result(
        self, errand: ThreadCall[Outcome | Awaitable[Any]]
    ) -> Outcome | Awaitable[Any]:
        """What the errand gives, or what it was interrupted with."""
        self.errand = errand
        try:
            value = await errand.future
        except asyncio.CancelledError:
            # The consumer is being torn down.
            if not errand.withdraw():
                self._left(self, self._ask("the worker let go of it"))
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if self._given is None or value is self._given:
            return value
        if isinstance(value, Raised):
            if not any(value.failure.is_a(name) for name in _EXPECTED):
                logger.warning(
                    "job %s (%s) raised while it was being stopped: %s",
                    self.claim.id,
                    self.claim.func,
                    value.failure.trace or value.failure.message,
                )
            return self._given
        if isinstance(value, Awaitable):
            if iscoroutine(value):
                value.close()
            return self._given
        return self._given if self._cancelled or self.job.heeded else value

    def interrupt(self, outcome: Outcome) -> bool:
        """Have it end as this outcome, if it heeds it. Whether it can be stopped."""
        future = self.errand.future
        if future.done():
            return False
        # A second one does not change how it ends, but may bring the end about.
        self._given = self._given or outcome
        if self.errand.withdraw():
            future.set_result(self._given)
            return True
        stoppable = self._ask(reason_of(outcome))
        if isinstance(outcome, Released):
            future.set_result(self._given)
            self._left(self, stoppable)
        return stoppable

    def limit(self, limit_s: float) -> None:
        """Interrupt it at its deadline. Called when it has begun."""
        left_s = self.job.seconds_left
        if left_s is not None and not self.errand.future.done():
            loop = asyncio.get_running_loop()
            timed_out = TimedOut(limit_s, limit_s)
            self._timer = loop.call_later(left_s, self.interrupt, timed_out)

    def _ask(self, reason: str) -> bool:
        self.job.ask_to_stop(reason)
        with self._lock:
            self._asked = True
            if self._task_loop is None:
                return False
            try:
                self._task_loop.call_soon_threadsafe(self._cancel)
            except RuntimeError:  # its loop has broken off
                return False
            return True

    def _cancel(self) -> None:
        """In the loop of the thread."""
        with self._lock:
            if self._task is not None and not self._cancelled and self._task.cancel():
                self._cancelled = True

    async def stoppable(self, work: Awaitable[Any]) -> Any:
        """Await what the function gave, and let it be cancelled. In the loop of the thread."""
        with self._lock:
            self._task = asyncio.current_task()
            self._task_loop = asyncio.get_running_loop()
            asked = self._asked
        if asked:
            self._cancel()
        try:
            return await work
        finally:
            with self._lock:
                self._task = self._task_loop = None

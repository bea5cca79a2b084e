"""An attempt that runs in a thread."""

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

#: Errors that a job raises because it was asked to stop.
_EXPECTED = ("chancy.errors.Interrupted", "asyncio.exceptions.CancelledError")

#: One for all runs: it is held for microseconds, and creating one takes as long as a short job.
_lock = threading.Lock()


class ThreadRun:
    """An attempt in a thread.

    A plain function can only be asked to stop. A coroutine, which runs in the thread's own loop, is
    cancelled.

    Used in the worker's loop, except for the methods that are marked.

    :param left: called when the attempt ends although its thread still runs it. The flag is True
        for a coroutine that was cancelled and is expected to end soon.
    """

    call: ThreadCall[Outcome | Awaitable[Any]]

    def __init__(
        self, claim: Claim, job: JobContext, left: Callable[[ThreadRun, bool], None]
    ) -> None:
        self.claim = claim
        self.job = job
        self._left = left
        self._interruption: Outcome | None = None
        self._timer: asyncio.TimerHandle | None = None
        # State of the coroutine, guarded by the lock, since two loops use it.
        self._task: asyncio.Task[Any] | None = None
        self._asked = False
        self._cancelled = False

    async def result(
        self, call: ThreadCall[Outcome | Awaitable[Any]], plain_errors: bool
    ) -> Outcome | Awaitable[Any]:
        """The result of the call, or the outcome that it was interrupted with.

        :param plain_errors: see `chancy.executors.base.AttemptCallbacks`.
        """
        self.call = call
        try:
            value = await call.future
        except asyncio.CancelledError:
            # The consumer is being torn down.
            if not call.withdraw():
                self._left(self, self._ask_to_stop("the worker abandoned the job"))
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if self._interruption is None or value is self._interruption:
            return value
        if isinstance(value, Raised):
            failure = value.failure
            if not any(failure.is_a(name) for name in _EXPECTED):
                logger.warning(
                    "job %s (%s) raised while it was being stopped: %s",
                    self.claim.id,
                    self.claim.func,
                    (failure.trace or failure.message) if plain_errors else failure.types[0],
                )
            return self._interruption
        if isinstance(value, Awaitable):
            if iscoroutine(value):
                value.close()
            return self._interruption
        return self._interruption if self._cancelled or self.job.heeded else value

    def interrupt(self, outcome: Outcome) -> bool:
        """Ask the attempt to stop with this outcome. Returns whether it can be stopped."""
        future = self.call.future
        if future.done():
            return False
        # A second interrupt does not change the outcome, but may force the end.
        self._interruption = self._interruption or outcome
        if self.withdraw(self._interruption):
            return True
        stoppable = self._ask_to_stop(reason_of(outcome))
        if isinstance(outcome, Released):
            future.set_result(self._interruption)
            self._left(self, stoppable)
        return stoppable

    def withdraw(self, outcome: Outcome) -> bool:
        """End the attempt with this outcome if no thread has started it; False if one has."""
        if self.call.future.done() or not self.call.withdraw():
            return False
        self._interruption = outcome
        self.call.future.set_result(outcome)
        return True

    def limit(self, limit_s: float) -> None:
        """Interrupt the attempt at its deadline. Called when it has started."""
        left_s = self.job.seconds_left
        if left_s is not None and not self.call.future.done():
            loop = asyncio.get_running_loop()
            timed_out = TimedOut(limit_s, limit_s)
            self._timer = loop.call_later(left_s, self.interrupt, timed_out)

    def _ask_to_stop(self, reason: str) -> bool:
        self.job.ask_to_stop(reason)
        with _lock:
            self._asked = True
            if self._task is None:
                return False
            try:
                self._task.get_loop().call_soon_threadsafe(self._cancel)
            except RuntimeError:  # its loop is closed
                return False
            return True

    def _cancel(self) -> None:
        """Cancel the coroutine. In the loop of the thread."""
        with _lock:
            if self._task is not None and not self._cancelled and self._task.cancel():
                self._cancelled = True

    async def stoppable(self, work: Awaitable[Any]) -> Any:
        """Await the result of the function, cancellably. In the loop of the thread."""
        with _lock:
            self._task = asyncio.current_task()
            asked = self._asked
        if asked:
            self._cancel()
        try:
            return await work
        finally:
            with _lock:
                self._task = None

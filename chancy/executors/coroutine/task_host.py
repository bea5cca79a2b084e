"""A task that continues a coroutine once it has to wait."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import Any

from chancy.attempt.outcome import Outcome
from chancy.executors import forks

if sys.version_info >= (3, 12):
    from asyncio.tasks import _swap_current_task as swap_current_task
else:
    _current: dict[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]
    _current = vars(asyncio.tasks)["_current_tasks"]

    def swap_current_task(
        loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None
    ) -> asyncio.Task[Any] | None:
        """Make a task the current one of a loop; returns the one before. Half of the time of
        ``_leave_task`` and ``_enter_task``."""
        before = _current[loop]
        _current[loop] = task
        return before


class CoroutineHost:
    """A task that waits for a coroutine that has made its first step, and then continues it.

    The task is created from a coroutine that has already entered its ``try``: a task that is
    cancelled before its first step would otherwise never enter it.
    """

    __slots__ = (
        "_awaits",
        "_context",
        "_job",
        "_wake",
        "abandoning",
        "interruption",
        "result",
        "task",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wake = loop.create_future()
        self._job: Coroutine[Any, Any, Any] | None = None
        self._context: Context | None = None
        # Value that the first step yielded: a future, or None for one turn of the loop.
        self._awaits: Any = None
        #: Value and error of the coroutine; set early if the coroutine is abandoned.
        self.result: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        #: The outcome that the attempt was interrupted with.
        self.interruption: Outcome | None = None
        #: Ends the wait for the coroutine once it has been interrupted.
        self.abandoning: asyncio.TimerHandle | None = None
        body = self._body()
        body.send(None)
        self.task = loop.create_task(body, name="chancy-job")

    @property
    def spent(self) -> bool:
        """Whether the task can run no other job: it was cancelled, or has callbacks for its end."""
        task: Any = self.task
        # Before the first step of a task, `uncancel` leaves the cancellation itself.
        cancelled = self._wake.done() or task.cancelling() > 0 or task._must_cancel  # noqa: SLF001
        return cancelled or bool(task._callbacks)  # noqa: SLF001

    def take_over(self, job: Coroutine[Any, Any, Any], context: Context, awaits: Any) -> None:
        """Take over a coroutine that has made its first step with the host's task as the current
        one, and now waits for ``awaits``."""
        self._job = job
        self._context = context
        self._awaits = awaits

    def wake(self) -> None:
        """Let the task continue its coroutine; without one the task ends."""
        if not self._wake.done():
            self._wake.set_result(None)

    def abandon(self) -> None:
        """End the wait for the coroutine, which continues."""
        if not self.result.done():
            self.result.set_result((None, None))

    async def _body(self) -> None:
        cancelled: asyncio.CancelledError | None = None
        try:
            await _pause()
            await self._wake
        except asyncio.CancelledError as error:
            cancelled = error
        if self._job is None or self._context is None:
            return
        if cancelled is not None and _cancel(self._awaits, cancelled):
            cancelled = None  # raised by the awaited future, as in any task
        result = await _continue(self._job, self._awaits, self._context, cancelled)
        if not self.result.done():
            self.result.set_result(result)


@coroutine
def _pause() -> Generator[None, None, None]:
    yield


def _cancel(awaited: Any, error: asyncio.CancelledError) -> bool:
    return isinstance(awaited, asyncio.Future) and awaited.cancel(*error.args[:1])


@coroutine
def _continue(
    job: Coroutine[Any, Any, Any],
    awaited: Any,
    context: Context,
    error: BaseException | None,
) -> Generator[Any, None, tuple[Any, BaseException | None]]:
    """Run a coroutine to its end, each step in its own context. Returns its value and error."""
    generation = forks.generation
    turn_taken = awaited is None  # a bare yield asks for one turn of the loop, which has passed
    while True:
        if error is None and not turn_taken:
            try:
                yield awaited
            except GeneratorExit:
                job.close()
                raise
            except BaseException as thrown:
                error = thrown
        turn_taken = False
        try:
            if error is None:
                awaited = context.run(job.send, None)
            else:
                awaited = context.run(job.throw, error)
        except StopIteration as end:
            return end.value, None
        except BaseException as raised:
            return None, raised
        finally:
            if forks.generation != generation:
                forks.end_copy()
        error = None

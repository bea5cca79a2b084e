"""A task that a coroutine is given once it has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from contextvars import Context
from types import coroutine
from typing import Any

from chancy.attempt.outcome import Outcome
from chancy.executors import forks


class CoroutineHost:
    """A task that waits for a coroutine which has made its first step, and runs it on.

    The task is made of a coroutine that already stands inside its ``try``: a task that is
    cancelled before its first step would otherwise never get there.
    """

    __slots__ = ("_awaits", "_context", "_job", "_wake", "end", "given", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._wake = loop.create_future()
        self._job: Coroutine[Any, Any, Any] | None = None
        self._context: Context | None = None
        # What the coroutine yielded in its first step: a future, or None for a turn of the loop.
        self._awaits: Any = None
        #: Result and error of the coroutine; set early if it is given up.
        self.end: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        #: What the attempt ends as once it was interrupted.
        self.given: Outcome | None = None
        body = self._body()
        body.send(None)
        self.task = loop.create_task(body, name="chancy-job")

    @property
    def spoilt(self) -> bool:
        """Whether somebody cancelled the task while it had no coroutine."""
        return self._wake.done() or self.task.cancelling() > 0

    def take_over(self, job: Coroutine[Any, Any, Any], context: Context, awaits: Any) -> None:
        """Take a coroutine that has made its first step, with the host's task as the current one,
        and waits for something."""
        self._job = job
        self._context = context
        self._awaits = awaits

    def wake(self) -> None:
        """Let the task go on with its coroutine; without one it ends."""
        if not self._wake.done():
            self._wake.set_result(None)

    def give_up(self) -> None:
        """End the wait for the coroutine, which goes on."""
        if not self.end.done():
            self.end.set_result((None, None))

    async def _body(self) -> None:
        cancelled: asyncio.CancelledError | None = None
        try:
            await _stand()
            await self._wake
        except asyncio.CancelledError as error:
            cancelled = error
        if self._job is None or self._context is None:
            return
        if cancelled is not None and _cancel(self._awaits, cancelled):
            cancelled = None  # it comes out of what the coroutine waits for, as in any task
        end = await _rest(self._job, self._awaits, self._context, cancelled)
        if not self.end.done():
            self.end.set_result(end)


@coroutine
def _stand() -> Generator[None, None, None]:
    yield


def _cancel(awaited: Any, error: asyncio.CancelledError) -> bool:
    return isinstance(awaited, asyncio.Future) and awaited.cancel(*error.args[:1])


@coroutine
def _rest(
    job: Coroutine[Any, Any, Any],
    awaited: Any,
    context: Context,
    error: BaseException | None,
) -> Generator[Any, None, tuple[Any, BaseException | None]]:
    """Run a coroutine to its end, each step in its own context. Gives its result and error."""
    generation = forks.generation
    turn_taken = awaited is None  # a bare yield asks for one turn of the loop: waking was it
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

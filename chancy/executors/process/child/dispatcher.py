"""Where the calls of a child are made, one at a time, and answered."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from time import perf_counter
from typing import TYPE_CHECKING, Any

from chancy.attempt.outcome import Outcome, Raised
from chancy.context.context import CURRENT, JobContext
from chancy.context.host import AttemptHost
from chancy.executors.invocation import (
    Callee,
    arguments_of,
    call_error,
    callee,
    raised,
    returned,
)
from chancy.executors.process.answer import answer, stopped
from chancy.executors.process.call import ChildCall
from chancy.executors.process.child.interrupts import Interrupter
from chancy.executors.process.memory import MemoryLimit
from chancy.job.definition import DECORATED
from chancy.job.registry import Registry

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("chancy.job")


class Dispatcher:
    """Plain functions are called at once, coroutines run by a loop of this thread.

    The loop is kept from call to call, so that clients tied to it stay usable. Tasks that a
    coroutine leaves behind rest until the next coroutine.

    :param max_result: bytes that an encoded result may have.
    :param guard: stops the job that runs.
    :param outside: takes what the job that runs says.
    """

    def __init__(self, max_result: int, guard: Interrupter, outside: AttemptHost) -> None:
        self._max_result = max_result
        self._guard = guard
        self._outside = outside
        self._wall = MemoryLimit()
        self._callees: dict[str, Callee] = {}
        # The parent has checked against its own list that the row may name the function.
        self._registry = Registry(allow=("*",))
        self._runner: asyncio.Runner | None = None

    def answer(self, call: ChildCall) -> bytes:
        """Make a call; gives the answer, whatever the function does."""
        guard = self._guard
        deadline = time.monotonic() + call.time_s if call.time_s else None
        job = JobContext(call, self._outside, deadline)
        CURRENT.set(job)
        self._wall.set(call.memory_bytes)
        guard.begin(call, job)
        try:
            outcome = self._run(call)
        finally:
            guard.end()
        if isinstance(outcome, Raised) and call.memory_bytes:
            self._wall.set(0)  # whatever is still to be done shall not fail for it
        return self.packed(call, outcome)

    def call_path(self, path: str) -> Outcome:
        """Call a function that is no job, without arguments."""
        try:
            called = callee(path, self.find)
        except BaseException as error:
            return raised(error, perf_counter())
        return self._make(called, {}, perf_counter())

    def _run(self, call: ChildCall) -> Outcome:
        began = perf_counter()
        try:
            called = self.callee(call.func)
            arguments = arguments_of(called, call.arguments)
        except BaseException as error:
            return raised(error, began)
        return self._make(called, arguments, began)

    def callee(self, path: str) -> Callee:
        """Look a function up. Raises what `callee` of `invocation` raises."""
        called = self._callees.get(path)
        if called is None:
            called = self._callees[path] = callee(path, self.find)
        return called

    def find(self, path: str) -> Callable[..., Any]:
        """The function of a path. Raises `UnknownFunction`."""
        # Importing the module registers what is decorated in it, which the registry prefers.
        module_name = path.rpartition(".")[0]
        if path not in DECORATED and module_name and module_name not in sys.modules:
            with contextlib.suppress(Exception):  # reported by the registry, which tries again
                importlib.import_module(module_name)
        return self._registry.find(path)

    def _make(self, called: Callee, arguments: dict[str, Any], began: float) -> Outcome:
        context = copy_context()
        try:
            value = self._guard.call(context, called.function, arguments)
        except BaseException as error:
            self._note(error)
            return raised(call_error(called, arguments, error), began)
        if value is not None and isinstance(value, Awaitable):
            try:
                value = self._wait_for(value, context)
            except BaseException as error:
                self._note(error)
                return raised(error, began)
        return returned(called, value, self._max_result, began)

    def _note(self, error: BaseException) -> None:
        if self._guard.stopped:
            note_stray(CURRENT.get(), error)

    @property
    def runner(self) -> asyncio.Runner:
        """Has the loop of this thread."""
        if self._runner is None:
            import asyncio  # a third of what a child that has only plain functions needs to start

            self._runner = asyncio.Runner()
        return self._runner

    def _wait_for(self, value: Awaitable[Any], context: Context) -> Any:
        runner = self.runner
        try:
            return runner.run(self._guard.awaiting(value), context=context)
        except (SystemExit, KeyboardInterrupt):
            # Such an exception breaks the loop off in the middle of its other tasks.
            self._runner = None
            runner.close()
            raise

    def packed(self, call: ChildCall, outcome: Outcome) -> bytes:
        """The answer to the call that was made last."""
        if self._guard.stopped:
            return stopped(call, outcome.elapsed_s, self._guard.why, self._guard.timed_out)
        return answer(call, outcome)


def note_stray(job: JobContext, error: BaseException) -> None:
    """Log what a job raised when it was stopped, unless that is how it ended as it was told."""
    if isinstance(error, Exception):
        logger.warning(
            "job %s (%s) raised while it was being stopped", job.id, job.func, exc_info=error
        )

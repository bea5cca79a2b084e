"""Runs the calls of an executor process, one at a time, and encodes the replies."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from contextvars import Context, copy_context
from time import perf_counter
from typing import TYPE_CHECKING, Any

from chancy.attempt.outcome import Outcome, Raised, Returned, Snoozed
from chancy.context.context import CURRENT, JobContext
from chancy.context.host import AttemptHost
from chancy.executors.invocation import (
    Callee,
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
from chancy.log_context import keeping_loggers

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("chancy.job")
hooks_logger = logging.getLogger("chancy.hooks")


class Dispatcher:
    """Calls plain functions directly, and runs coroutines in an event loop of this thread.

    The loop is kept from call to call, so clients bound to it stay usable. Tasks that a coroutine
    leaves behind are suspended until the next coroutine runs.

    :param max_result: maximum size of an encoded result in bytes.
    :param interrupter: interrupts the running job.
    :param host: host of the contexts of jobs.
    :param wrapper: see `chancy.job.registry.Registry`.
    :param plain_errors: see `chancy.executors.base.AttemptCallbacks`.
    """

    def __init__(
        self,
        max_result: int,
        interrupter: Interrupter,
        host: AttemptHost,
        wrapper: str | None = None,
        *,
        plain_errors: bool = True,
    ) -> None:
        self._max_result = max_result
        self._interrupter = interrupter
        self._host = host
        self._plain_errors = plain_errors
        self._memory_limit = MemoryLimit()
        self._callees: dict[str, Callee] = {}
        # The worker has already checked that the function is allowed.
        self._registry = Registry(allow=("*",))
        self._registry.wrapper = wrapper
        self._runner: asyncio.Runner | None = None
        self._around: list[Callable[[JobContext], AbstractContextManager[object]]] = []

    def answer(self, call: ChildCall, loaded: Callee | Raised | Snoozed) -> bytes:
        """Make a call; returns the reply, whatever the function does.

        :param loaded: the function, or why there is none.
        """
        deadline = time.monotonic() + call.time_s if call.time_s else None
        job = JobContext(call, self._host, deadline)
        CURRENT.set(job)
        self._memory_limit.set(call.memory_bytes)
        self._interrupter.job_started(call, job)
        try:
            if isinstance(loaded, Raised | Snoozed):
                outcome: Outcome = loaded
            elif self._around:
                outcome = self._run_around(call, loaded, job)
            else:
                outcome = self._run(call, loaded, copy_context())
        finally:
            self._interrupter.job_ended()
        if isinstance(outcome, Raised) and call.memory_bytes:
            self._memory_limit.set(0)  # encoding the reply must not fail because of the limit
        if self._interrupter.stopped:
            return stopped(
                call, outcome.elapsed_s, self._interrupter.why, self._interrupter.timed_out
            )
        return answer(call, outcome)

    @keeping_loggers()
    def prepare(self, initializer: str | None, around: Sequence[str]) -> Outcome | None:
        """Get ready for jobs. Returns the outcome of the initializer, or why one of these failed.

        :param initializer: path of a function to call; the wrapper of functions is imported before.
        :param around: paths of functions that wrap each job.
        """
        outcome: Outcome | None = None
        try:
            if self._registry.wrapper is not None:
                self._registry.load_wrapper()
            if initializer is not None:
                called = callee(initializer, self.find)
                outcome = self._call(called, {}, copy_context(), perf_counter())
            if not isinstance(outcome, Raised):
                self._around = [self.find(path) for path in around]
        except BaseException as error:
            return raised(error, perf_counter())
        return outcome

    def _run_around(self, call: ChildCall, called: Callee, job: JobContext) -> Outcome:
        """Run a call inside the functions that wrap each job."""
        began = perf_counter()
        context = copy_context()
        stack = ExitStack()
        failed: BaseException | None = None
        try:
            context.run(self._enter, stack, job)
        except BaseException as error:
            failed = error
        outcome = raised(failed, began) if failed else self._run(call, called, context)
        job.outcome = outcome
        try:
            kind, trace = (type(failed), failed.__traceback__) if failed else (None, None)
            context.run(stack.__exit__, kind, failed, trace)
        except BaseException as error:
            if error is not failed:
                hooks_logger.error(
                    "hook_failed hook=around_in_child job=%s error=%r",
                    job.id,
                    error,
                    exc_info=error,
                )
            return raised(error, began) if isinstance(outcome, Returned) else outcome
        return outcome

    def _enter(self, stack: ExitStack, job: JobContext) -> None:
        for around in self._around:
            stack.enter_context(around(job))

    def _run(self, call: ChildCall, called: Callee, context: Context) -> Outcome:
        began = perf_counter()
        try:
            arguments = called.signature.decode(call.arguments)
        except BaseException as error:
            return raised(error, began)
        return self._call(called, arguments, context, began)

    def loaded(self, path: str) -> Callee | None:
        """A function that was loaded before."""
        return self._callees.get(path)

    def load(self, path: str) -> Callee | Raised | Snoozed:
        """Look a function up, which may import its module."""
        began = perf_counter()
        try:
            called = self._callees[path] = callee(path, self.find)
        except BaseException as error:
            return raised(error, began)
        return called

    @keeping_loggers()
    def find(self, path: str) -> Callable[..., Any]:
        """The function of a path.

        :raises UnknownFunction: there is no such function.
        """
        # Importing the module registers its decorated functions, which the registry prefers.
        module_name = path.rpartition(".")[0]
        if path not in DECORATED and module_name and module_name not in sys.modules:
            with contextlib.suppress(Exception):  # reported by the registry, which tries again
                importlib.import_module(module_name)
        return self._registry.find(path)

    def _call(
        self, called: Callee, arguments: dict[str, Any], context: Context, began: float
    ) -> Outcome:
        try:
            value = self._interrupter.call(context, called.function, arguments)
        except BaseException as error:
            self._log_if_stopped(error)
            return raised(call_error(called, arguments, error), began)
        if value is not None and isinstance(value, Awaitable):
            try:
                value = self._wait_for(value, context)
            except BaseException as error:
                self._log_if_stopped(error)
                return raised(error, began)
        return returned(called, value, self._max_result, began)

    def _log_if_stopped(self, error: BaseException) -> None:
        """Log an error of a job that was being stopped, unless it is the interruption itself."""
        if self._interrupter.stopped and isinstance(error, Exception):
            job = CURRENT.get()
            logger.warning(
                "job %s (%s) raised while it was being stopped: %s",
                job.id,
                job.func,
                type(error).__name__,
                exc_info=error if self._plain_errors else None,
            )

    def _wait_for(self, value: Awaitable[Any], context: Context) -> Any:
        if self._runner is None:
            import asyncio  # a third of the start time of a process that runs only plain functions

            self._runner = asyncio.Runner()
        runner = self._runner
        try:
            return runner.run(self._interrupter.awaiting(value), context=context)
        except (SystemExit, KeyboardInterrupt):
            # Such an exception stops the loop while its other tasks are running.
            self._runner = None
            runner.close()
            raise

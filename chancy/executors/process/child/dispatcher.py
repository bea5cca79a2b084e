"""Runs the calls of an executor process, one at a time, and encodes the replies."""

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
    """Calls plain functions directly, and runs coroutines in an event loop of this thread.

    The loop is kept from call to call, so clients bound to it stay usable. Tasks that a coroutine
    leaves behind are suspended until the next coroutine runs.

    :param max_result: maximum size of an encoded result in bytes.
    :param interrupter: interrupts the running job.
    :param host: host of the contexts of jobs.
    """

    def __init__(self, max_result: int, interrupter: Interrupter, host: AttemptHost) -> None:
        self._max_result = max_result
        self._interrupter = interrupter
        self._host = host
        self._memory_limit = MemoryLimit()
        self._callees: dict[str, Callee] = {}
        # The worker has already checked that the function is allowed.
        self._registry = Registry(allow=("*",))
        self._runner: asyncio.Runner | None = None

    def answer(self, call: ChildCall, loaded: Callee | Raised) -> bytes:
        """Make a call; returns the reply, whatever the function does.

        :param loaded: the function, or why there is none.
        """
        deadline = time.monotonic() + call.time_s if call.time_s else None
        job = JobContext(call, self._host, deadline)
        CURRENT.set(job)
        self._memory_limit.set(call.memory_bytes)
        self._interrupter.job_started(call, job)
        try:
            outcome = loaded if isinstance(loaded, Raised) else self._run(call, loaded)
        finally:
            self._interrupter.job_ended()
        if isinstance(outcome, Raised) and call.memory_bytes:
            self._memory_limit.set(0)  # encoding the reply must not fail because of the limit
        if self._interrupter.stopped:
            return stopped(
                call, outcome.elapsed_s, self._interrupter.why, self._interrupter.timed_out
            )
        return answer(call, outcome)

    def call_path(self, path: str) -> Outcome:
        """Call a function that is not a job, without arguments."""
        try:
            called = callee(path, self.find)
        except BaseException as error:
            return raised(error, perf_counter())
        return self._call(called, {}, perf_counter())

    def _run(self, call: ChildCall, called: Callee) -> Outcome:
        began = perf_counter()
        try:
            arguments = called.signature.decode(call.arguments)
        except BaseException as error:
            return raised(error, began)
        return self._call(called, arguments, began)

    def loaded(self, path: str) -> Callee | None:
        """A function that was loaded before."""
        return self._callees.get(path)

    def load(self, path: str) -> Callee | Raised:
        """Look a function up, which may import its module."""
        began = perf_counter()
        try:
            called = self._callees[path] = callee(path, self.find)
        except BaseException as error:
            return raised(error, began)
        return called

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

    def _call(self, called: Callee, arguments: dict[str, Any], began: float) -> Outcome:
        context = copy_context()
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
                "job %s (%s) raised while it was being stopped", job.id, job.func, exc_info=error
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

"""Runs several coroutine jobs at a time in the event loop of an executor process.

A plain function runs in the main thread, too, between the steps of the coroutines, which wait for
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable
from contextvars import ContextVar, copy_context
from functools import partial
from time import perf_counter
from typing import Any

from chancy.attempt.outcome import Outcome
from chancy.context.context import CURRENT, JobContext
from chancy.executors.invocation import Callee, arguments_of, call_error, raised, returned
from chancy.executors.process import answer as answers
from chancy.executors.process.call import MAX_CALL, ChildCall
from chancy.executors.process.child.dispatcher import log_late_error
from chancy.executors.process.child.job_loop import JobLoop

_NUMBER: ContextVar[int] = ContextVar("chancy_call_number", default=0)


class _RunningCoroutine:
    """A running coroutine job."""

    def __init__(self, call: ChildCall, job: JobContext) -> None:
        self.call = call
        self.job = job
        self.began = perf_counter()
        self.task: asyncio.Task[Outcome] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.why: str | None = None
        self.at_limit = False

    def stop(self, why: str, *, at_limit: bool = False) -> None:
        if self.task is not None and not self.task.done() and self.why is None:
            self.why = why
            self.at_limit = at_limit
            self.job.ask_to_stop(why)
            self.task.cancel(why)

    def log_if_stopped(self, error: BaseException) -> None:
        """Log an error of the job if it was being stopped."""
        if self.why is not None:
            log_late_error(self.job, error)


class ConcurrentJobLoop(JobLoop):
    """The main loop of an executor process that runs several jobs at a time.

    Only the worker enforces memory limits then, since the job that took the memory is not known
    here.
    """

    _loop: asyncio.AbstractEventLoop

    def serve(self) -> None:
        """Run calls until the worker closes the channel."""
        if not self.prepare():
            return
        self._coroutines: dict[int, _RunningCoroutine] = {}
        self._reading = False
        self._closed = False
        with self._dispatcher.runner as runner:
            self._loop = runner.get_loop()
            self._resume_reading()
            while not self._closed:
                # Only a task that a job has left behind can raise these.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_forever()

    def _call_number(self) -> int:
        return _NUMBER.get()

    def _stop(self, number: int, why: str) -> None:
        running = self._coroutines.get(number)
        if running is None:
            self._interrupter.stop(number, why)
        else:
            # This runs in a signal handler: a task may be in the middle of a step.
            self._loop.call_soon_threadsafe(running.stop, why)

    def _resume_reading(self) -> None:
        if not self._reading and len(self._coroutines) < self._settings.jobs:
            self._reading = True
            self._loop.add_reader(self._calls.fileno(), self._receive_call)

    def _receive_call(self) -> None:
        try:
            message = self._calls.recv(MAX_CALL, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            os._exit(1)
        if not message:
            self._closed = True
            self._loop.remove_reader(self._calls.fileno())
            self._loop.stop()
            return
        self._accept(ChildCall(message))
        if len(self._coroutines) >= self._settings.jobs:
            self._reading = False
            self._loop.remove_reader(self._calls.fileno())

    def _accept(self, call: ChildCall) -> None:
        self._busy = True
        if not call.whole:
            self._fetch(call)
        deadline = time.monotonic() + call.time_s if call.time_s else None
        job = JobContext(call, self._requests, deadline)
        copy_context().run(self._start, _RunningCoroutine(call, job))

    def _start(self, running: _RunningCoroutine) -> None:
        """Start a job, in its own context."""
        call = running.call
        CURRENT.set(running.job)
        _NUMBER.set(call.number)
        try:
            called = self._dispatcher.callee(call.func)
            arguments = arguments_of(called, call.arguments)
        except BaseException as error:
            self._end(running, raised(error, running.began))
            return
        try:
            value = self._call(running, called, arguments)
        except BaseException as error:
            running.log_if_stopped(error)
            self._end(running, raised(call_error(called, arguments, error), running.began))
            return
        if isinstance(value, Awaitable):
            self._follow(running, called, value)
        else:
            self._end(running, returned(called, value, self._settings.max_payload, running.began))

    def _call(self, running: _RunningCoroutine, called: Callee, arguments: dict[str, Any]) -> Any:
        if called.coroutine:
            return called.function(**arguments)
        interrupter = self._interrupter
        interrupter.job_started(running.call, running.job)
        try:
            return interrupter.call(copy_context(), called.function, arguments)
        finally:
            interrupter.job_ended()
            if interrupter.stopped:
                running.why, running.at_limit = interrupter.why, interrupter.timed_out

    def _follow(self, running: _RunningCoroutine, called: Callee, value: Awaitable[Any]) -> None:
        self._coroutines[running.call.number] = running
        running.task = self._loop.create_task(self._run(running, called, value), name="chancy-job")
        running.task.add_done_callback(partial(self._ended, running))
        time_s = running.call.time_s
        if time_s:
            left_s = running.began + time_s - perf_counter()
            why = f"its time limit of {time_s:g} s has passed"
            running.timer = self._loop.call_later(left_s, partial(running.stop, why, at_limit=True))
        if (why_stopped := self._interrupter.take_request(running.call.number)) is not None:
            running.stop(why_stopped)

    async def _run(
        self, running: _RunningCoroutine, called: Callee, value: Awaitable[Any]
    ) -> Outcome:
        try:
            result = await value
        except BaseException as error:
            running.log_if_stopped(error)
            return raised(error, running.began)
        return returned(called, result, self._settings.max_payload, running.began)

    def _ended(self, running: _RunningCoroutine, task: asyncio.Task[Outcome]) -> None:
        if running.timer is not None:
            running.timer.cancel()
        del self._coroutines[running.call.number]
        try:
            outcome = task.result()
        except BaseException as error:  # cancelled before its first step
            outcome = raised(error, running.began)
        self._end(running, outcome)
        self._resume_reading()

    def _end(self, running: _RunningCoroutine, outcome: Outcome) -> None:
        call = running.call
        if self._connection.forked:
            os._exit(0)
        if running.why is not None:
            reply = answers.stopped(call, outcome.elapsed_s, running.why, running.at_limit)
        else:
            reply = answers.answer(call, outcome)
        self._progress.end(call)
        self._log_handler.end()
        self._busy = bool(self._coroutines)
        self._connection.send(reply)

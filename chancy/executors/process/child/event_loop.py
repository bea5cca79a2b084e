"""A child of the process executor that runs several coroutine jobs at a time, in one loop.

A plain function runs in the main thread all the same, between the steps of the coroutines, which
wait for it.
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
from chancy.executors.process.child.dispatcher import note_stray
from chancy.executors.process.child.job_loop import JobLoop

_NUMBER: ContextVar[int] = ContextVar("chancy_call_number", default=0)


class _RunningCoroutine:
    """One coroutine on its way."""

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

    def note(self, error: BaseException) -> None:
        """Log what the job raised if it was stopped."""
        if self.why is not None:
            note_stray(self.job, error)


class ConcurrentJobLoop(JobLoop):
    """The main loop of such a child. The memory limit of a job is kept by the parent alone, since
    it cannot be said here which job took the memory."""

    _loop: asyncio.AbstractEventLoop

    def serve(self) -> None:
        """Answer calls until the parent closes the line."""
        if not self.prepare():
            return
        self._courses: dict[int, _RunningCoroutine] = {}
        self._reading = False
        self._over = False
        with self._desk.runner as runner:
            self._loop = runner.get_loop()
            self._read_on()
            while not self._over:
                # Only a task that a job has left behind can raise these.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_forever()

    def _call_number(self) -> int:
        return _NUMBER.get()

    def _stop(self, number: int, why: str) -> None:
        course = self._courses.get(number)
        if course is None:
            self._guard.stop(number, why)
        else:
            # In a signal handler: a task may be in the middle of a step.
            self._loop.call_soon_threadsafe(course.stop, why)

    def _read_on(self) -> None:
        if not self._reading and len(self._courses) < self._terms.jobs:
            self._reading = True
            self._loop.add_reader(self._calls.fileno(), self._take)

    def _take(self) -> None:
        try:
            message = self._calls.recv(MAX_CALL, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            os._exit(1)
        if not message:
            self._over = True
            self._loop.remove_reader(self._calls.fileno())
            self._loop.stop()
            return
        self._begin(ChildCall(message))
        if len(self._courses) >= self._terms.jobs:
            self._reading = False
            self._loop.remove_reader(self._calls.fileno())

    def _begin(self, call: ChildCall) -> None:
        self._busy = True
        if not call.whole:
            self._fetch(call)
        deadline = time.monotonic() + call.time_s if call.time_s else None
        job = JobContext(call, self._requests, deadline)
        copy_context().run(self._start, _RunningCoroutine(call, job))

    def _start(self, course: _RunningCoroutine) -> None:
        """Begin a job, in a context of its own."""
        call = course.call
        CURRENT.set(course.job)
        _NUMBER.set(call.number)
        try:
            called = self._desk.callee(call.func)
            arguments = arguments_of(called, call.arguments)
        except BaseException as error:
            self._end(course, raised(error, course.began))
            return
        try:
            value = self._call(course, called, arguments)
        except BaseException as error:
            course.note(error)
            self._end(course, raised(call_error(called, arguments, error), course.began))
            return
        if isinstance(value, Awaitable):
            self._follow(course, called, value)
        else:
            self._end(course, returned(called, value, self._terms.max_payload, course.began))

    def _call(self, course: _RunningCoroutine, called: Callee, arguments: dict[str, Any]) -> Any:
        if called.coroutine:
            return called.function(**arguments)
        guard = self._guard
        guard.begin(course.call, course.job)
        try:
            return guard.call(copy_context(), called.function, arguments)
        finally:
            guard.end()
            if guard.stopped:
                course.why, course.at_limit = guard.why, guard.timed_out

    def _follow(self, course: _RunningCoroutine, called: Callee, value: Awaitable[Any]) -> None:
        self._courses[course.call.number] = course
        course.task = self._loop.create_task(self._run(course, called, value), name="chancy-job")
        course.task.add_done_callback(partial(self._ended, course))
        time_s = course.call.time_s
        if time_s:
            left_s = course.began + time_s - perf_counter()
            why = f"its time limit of {time_s:g} s has passed"
            course.timer = self._loop.call_later(left_s, partial(course.stop, why, at_limit=True))
        if (why_stopped := self._guard.asked(course.call.number)) is not None:
            course.stop(why_stopped)

    async def _run(
        self, course: _RunningCoroutine, called: Callee, value: Awaitable[Any]
    ) -> Outcome:
        try:
            result = await value
        except BaseException as error:
            course.note(error)
            return raised(error, course.began)
        return returned(called, result, self._terms.max_payload, course.began)

    def _ended(self, course: _RunningCoroutine, task: asyncio.Task[Outcome]) -> None:
        if course.timer is not None:
            course.timer.cancel()
        del self._courses[course.call.number]
        try:
            outcome = task.result()
        except BaseException as error:  # cancelled before its first step
            outcome = raised(error, course.began)
        self._end(course, outcome)
        self._read_on()

    def _end(self, course: _RunningCoroutine, outcome: Outcome) -> None:
        call = course.call
        if self._line.cut:
            os._exit(0)
        if course.why is not None:
            answer = answers.stopped(call, outcome.elapsed_s, course.why, course.at_limit)
        else:
            answer = answers.answer(call, outcome)
        self._says.end(call)
        self._recorder.end()
        self._busy = bool(self._courses)
        self._line.say(answer)

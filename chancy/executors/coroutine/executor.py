"""The async executor: runs jobs in the worker's event loop.

A coroutine needs a task of its own: `asyncio.timeout`, task groups and cancel scopes are bound to
the task they started in, and stopping a job must not stop the consumer that awaits it. But a task
per job costs 4.2 µs, more than everything else. So the first step of a coroutine runs in place,
with a waiting task (a `CoroutineHost`) as the current one. This costs 0.7 µs, the same as an eager
task of Python 3.12. A job that never waits ends there, and the host is reused. A job that waits
continues in the host.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.tasks import _unregister_task
from collections.abc import Awaitable
from contextvars import Context, copy_context
from functools import partial
from sys import getrefcount
from time import monotonic, perf_counter
from types import CoroutineType
from typing import Any
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Released, TimedOut
from chancy.context.context import CURRENT, JobContext
from chancy.errors import Interrupted, UnsupportedLimit
from chancy.executors import forks
from chancy.executors.coroutine.stall_watch import LoopWatch
from chancy.executors.coroutine.task_host import CoroutineHost, swap_current_task
from chancy.executors.imports import load, refused
from chancy.executors.invocation import (
    Callee,
    awaited,
    call_error,
    called_here,
    callee,
    raised,
    reason_of,
    returned,
    time_limit,
)
from chancy.executors.progress import Reporter
from chancy.executors.setup import ExecutorSetup
from chancy.executors.thread.pool import ThreadPool
from chancy.executors.thread.run import ThreadRun
from chancy.job.limits import NO_LIMITS, decode_limits
from chancy.queue.executor_options import AsyncOptions
from chancy.queue.queue import PLAIN_WITH_TIME

logger = logging.getLogger("chancy.executors")

#: Longest grace in seconds of a job that is released: the worker waits 10 s for it.
RELEASED_S = 5.0
#: Maximum number of threads for plain functions, whatever the concurrency is.
MAX_THREADS = 64

_Run = tuple[UUID, UUID]


class AsyncExecutor:
    """Runs coroutine functions in the event loop, and plain functions in threads.

    Each job has a copy of the consumer's context. A task that a job leaves behind continues in the
    loop.
    """

    broken: str | None = None
    _loop: asyncio.AbstractEventLoop

    def __init__(self, setup: ExecutorSetup) -> None:
        assert isinstance(setup.options, AsyncOptions)
        self.slots = setup.concurrency
        self._find = setup.find
        self._max_payload = setup.max_payload
        self._options = setup.options
        self._limits = setup.limits
        self._limited = setup.limits != NO_LIMITS
        self._reporter = Reporter(setup.callbacks, setup.max_payload)
        self._plain_errors = setup.callbacks.plain_errors
        self._callees: dict[str, Callee] = {}
        self._watch: LoopWatch | None = None
        self._spare: CoroutineHost | None = None
        self._hosts: dict[_Run, tuple[CoroutineHost, JobContext]] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self._threads = ThreadPool(min(setup.concurrency, MAX_THREADS), "chancy-async")
        self._thread_runs: dict[_Run, ThreadRun] = {}

    async def start(self) -> None:
        """Start to watch the loop. Everything else is created on demand."""
        self._loop = asyncio.get_running_loop()
        self._reporter.attach(self._loop)
        self._watch = LoopWatch.of(self._loop)

    async def run(self, claim: Claim) -> Outcome:
        began = perf_counter()
        try:
            called = self._callees.get(claim.func)
            if called is None:
                await load(claim.func, self._find)
                called = self._callees[claim.func] = callee(claim.func, self._find)
            arguments = called.signature.decode(claim.arguments)
            limited = claim.limits is not None or self._limited
            limit_s = self._time_limit(claim, called) if limited else None
        except BaseException as error:
            return refused(error, began)
        job = self._reporter.context_of(claim)
        if limit_s is not None:
            job.deadline = monotonic() + limit_s
        if called.coroutine:
            return await self._run_coroutine(claim, called, arguments, job, copy_context(), began)
        return await self._run_plain(claim, called, arguments, job, copy_context())

    def _time_limit(self, claim: Claim, called: Callee) -> float | None:
        """The time limit of a claim.

        :raises UnsupportedLimit: the limit cannot be enforced.
        """
        limit_s = time_limit(claim, self._limits, "async", self._options)
        if limit_s is not None and not called.coroutine:
            raise UnsupportedLimit(f"{called.path} {PLAIN_WITH_TIME}")
        return limit_s

    async def _run_coroutine(
        self,
        claim: Claim,
        called: Callee,
        arguments: dict[str, Any],
        job: JobContext,
        context: Context,
        began: float,
    ) -> Outcome:
        # `get_running_loop` reads the process id from the system, which takes 0.16 µs.
        loop = self._loop
        host, self._spare = self._spare, None
        if host is None or host.spent:
            host = CoroutineHost(loop)
        holders = getrefcount(host.task)
        work: Any = None
        outcome: Outcome | None = None
        value: Any = None
        ended = False
        generation = forks.generation
        consumer = swap_current_task(loop, host.task)
        try:
            # Calling a coroutine function does not run its body, so it needs no context.
            work = called.function(**arguments)
            context.run(CURRENT.set, job)
            if type(work) is not CoroutineType:
                work = awaited(work)
            host.take_over(work, context, context.run(work.send, None))
        except BaseException as error:
            if work is None:
                outcome = raised(call_error(called, arguments, error), began)
            elif isinstance(error, StopIteration):
                # Encoded after this block: errors of it would have `error`, and so the result, as
                # their context.
                value, ended = error.value, True
            else:
                outcome = raised(error, began)
        finally:
            swap_current_task(loop, consumer)
        if forks.generation != generation:
            forks.end_copy()
        if ended:
            outcome = returned(called, value, self._max_payload, began)
        if outcome is None:
            host.wake()
            outcome = await self._follow(claim, called, job, host, began)
        elif host.spent or self._spare is not None or getrefcount(host.task) != holders:
            # A job that did not wait may have kept the task, to cancel it later, say: it must not
            # run another job then.
            host.wake()
        else:
            self._spare = host
        job.outcome = outcome
        self._reporter.end(claim)
        return outcome

    async def _follow(
        self, claim: Claim, called: Callee, job: JobContext, host: CoroutineHost, began: float
    ) -> Outcome:
        """Wait for a job that continues in its host."""
        run = claim.id, claim.lease
        self._hosts[run] = host, job
        timer = None if job.deadline is None else self._set_timer(claim, job, host)
        try:
            value, error = await host.result
        except asyncio.CancelledError:
            # The consumer is being torn down: stop the job first.
            host.task.cancel()
            grace_s = min(self._options.grace_s, RELEASED_S)
            await asyncio.wait([host.task], timeout=grace_s)
            if not host.task.done():
                self._abandon(claim, host, grace_s)
            raise
        finally:
            del self._hosts[run]
            if timer is not None:
                timer.cancel()
            if host.abandoning is not None:
                host.abandoning.cancel()
        if host.interruption is not None:
            if error is not None and not isinstance(error, asyncio.CancelledError | Interrupted):
                logger.warning(
                    "job %s (%s) raised while it was being stopped: %s",
                    claim.id,
                    called.path,
                    type(error).__name__,
                    exc_info=error if self._plain_errors else None,
                )
            return host.interruption
        if error is not None:
            return raised(error, began)
        return returned(called, value, self._max_payload, began)

    def _set_timer(self, claim: Claim, job: JobContext, host: CoroutineHost) -> asyncio.TimerHandle:
        limit_s = decode_limits(claim.limits).over(self._limits).time_s or 0.0
        timed_out = TimedOut(limit_s, limit_s)
        left_s = job.seconds_left or 0.0
        return self._loop.call_later(left_s, self._interrupt_host, claim, job, host, timed_out)

    def _abandon(self, claim: Claim, host: CoroutineHost, grace_s: float) -> None:
        if host.task.done():
            return
        logger.error(
            "job %s (%s) did not end within %g s of being cancelled: it is abandoned, "
            "and runs until it returns",
            claim.id,
            claim.func,
            grace_s,
        )
        self._abandoned.add(host.task)
        host.task.add_done_callback(self._abandoned.discard)
        host.abandon()

    async def _run_plain(
        self,
        claim: Claim,
        called: Callee,
        arguments: dict[str, Any],
        job: JobContext,
        context: Context,
    ) -> Outcome:
        began = perf_counter()
        context.run(CURRENT.set, job)
        run = ThreadRun(claim, job, _warn_of_thread)
        call = partial(called_here, called, arguments, context, self._max_payload)
        self._thread_runs[claim.id, claim.lease] = run
        try:
            value = await run.result(self._threads.submit(call), self._plain_errors)
        except Exception as error:
            value = raised(error, began)
        finally:
            del self._thread_runs[claim.id, claim.lease]
        if isinstance(value, Awaitable):
            called = called._replace(function=awaited, coroutine=True)
            return await self._run_coroutine(claim, called, {"value": value}, job, context, began)
        job.outcome = value
        self._reporter.end(claim)
        return value

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        run = claim.id, claim.lease
        if run in self._hosts:
            host, job = self._hosts[run]
            return self._interrupt_host(claim, job, host, outcome)
        # A plain function can be stopped only before it has started.
        thread_run = self._thread_runs.get(run)
        return thread_run is not None and thread_run.interrupt(outcome)

    def release_waiting(self, outcome: Outcome) -> None:
        """End plain functions that no thread has started."""
        for run in self._thread_runs.values():
            run.withdraw(outcome)

    def _interrupt_host(
        self, claim: Claim, job: JobContext, host: CoroutineHost, outcome: Outcome
    ) -> bool:
        if host.result.done():
            return False
        grace_s = self._options.grace_s
        if isinstance(outcome, Released):
            grace_s = min(grace_s, RELEASED_S)
        ends_at = self._loop.time() + grace_s
        if host.abandoning is None or ends_at < host.abandoning.when():
            if host.abandoning is not None:
                host.abandoning.cancel()
            host.abandoning = self._loop.call_at(ends_at, self._abandon, claim, host, grace_s)
        # Once: requests are repeated, and a second cancellation would interrupt the cleanup.
        if host.interruption is None:
            host.interruption = outcome
            job.ask_to_stop(reason_of(outcome))
            host.task.cancel()
        return True

    async def stop(self) -> None:
        """Stop the threads and cancel abandoned jobs."""
        if self._watch is not None:
            self._watch.leave()
            self._watch = None
        await self._threads.stop()
        if self._spare is not None:
            self._spare.wake()
            await self._spare.task
            self._spare = None
        if self._abandoned:
            for task in self._abandoned:
                task.cancel()
            _, alive = await asyncio.wait(set(self._abandoned), timeout=1.0)
            for task in alive:
                # asyncio.run waits without limit for every registered task.
                _unregister_task(task)


def _warn_of_thread(run: ThreadRun, ends_soon: bool) -> None:
    logger.warning(
        "job %s (%s) is a plain function in a thread, which cannot be stopped: it occupies its "
        "thread until it returns, and its result is dropped",
        run.claim.id,
        run.claim.func,
    )

"""The thread executor: runs jobs in threads of the worker."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable
from contextvars import Context, copy_context
from functools import partial
from time import monotonic, perf_counter
from typing import Any

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Released
from chancy.context.context import CURRENT
from chancy.executors.imports import load, refused
from chancy.executors.invocation import (
    Callee,
    called_here,
    callee,
    raised,
    returned,
    time_limit,
)
from chancy.executors.progress import Reporter
from chancy.executors.setup import ExecutorSetup
from chancy.executors.thread.loop_threads import LoopThreads
from chancy.executors.thread.pool import ThreadPool
from chancy.executors.thread.run import ThreadRun
from chancy.job.limits import NO_LIMITS
from chancy.queue.executor_options import ThreadOptions

logger = logging.getLogger("chancy.executors")

#: Calls are prefetched for this many seconds of work at the current pace.
_AHEAD_S = 0.01
MAX_AHEAD = 128
#: Seconds without any job ending after which calls that have not started are released.
_PATIENCE_S = 1.0
#: Longest pause in seconds between two measurements of the pace.
_MEASURE_MOST_S = 0.16


class ThreadExecutor:
    """Runs plain functions in a thread, and coroutine functions in an event loop of that thread.

    A thread keeps its loop from job to job, so clients bound to the loop stay usable. Tasks that a
    coroutine leaves behind are suspended until the next coroutine runs. Each job has a copy of the
    consumer's context.

    Calls are prefetched: as many as the threads run in 10 ms at their current pace, and `slots`
    grows and shrinks accordingly. Calls that have not started are released when no job ends for a
    second.
    """

    broken: str | None = None
    _loop: asyncio.AbstractEventLoop

    def __init__(self, setup: ExecutorSetup) -> None:
        assert isinstance(setup.options, ThreadOptions)
        self._concurrency = setup.concurrency
        self._find = setup.find
        self._max_payload = setup.max_payload
        self._options = setup.options
        self._limits = setup.limits
        self._limited = setup.limits != NO_LIMITS
        self._reporter = Reporter(setup.callbacks, setup.max_payload)
        self._plain_errors = setup.callbacks.plain_errors
        self._callees: dict[str, Callee] = {}
        # By identity of the claim, which the run references: its id is slow to hash.
        self._runs: dict[int, ThreadRun] = {}
        self._stuck = 0
        self._ahead = 0
        self._ended = 0
        self._measured_at = self._progress_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._local = threading.local()
        self._threads = ThreadPool(setup.concurrency, "chancy-thread", self._close_runner)

    @property
    def slots(self) -> int:
        """Number of threads, without those still occupied by interrupted jobs, and the prefetched
        calls; none if every thread is occupied."""
        free = self._concurrency - self._stuck
        return free + self._ahead if free else 0

    async def start(self) -> None:
        """Threads are started on demand."""
        self._loop = asyncio.get_running_loop()
        self._reporter.attach(self._loop)

    async def run(self, claim: Claim) -> Outcome:
        try:
            called = self._callees.get(claim.func)
            if called is None:
                await load(claim.func, self._find)
                called = self._callees[claim.func] = callee(claim.func, self._find)
            limit_s = None
            if claim.limits is not None or self._limited:
                limit_s = time_limit(claim, self._limits, "thread", self._options)
        except BaseException as error:
            return refused(error, perf_counter())
        job = self._reporter.context_of(claim)
        context = copy_context()
        context.run(CURRENT.set, job)
        run = ThreadRun(claim, job, self._left)
        if self._timer is None:
            self._measured_at = self._progress_at = self._loop.time()
            self._timer = self._loop.call_later(_AHEAD_S / 2, self._measure, _AHEAD_S)
        self._runs[id(claim)] = run
        call = partial(self._perform, called, run, context, limit_s)
        try:
            value = await run.result(self._threads.submit(call), self._plain_errors)
            assert not isinstance(value, Awaitable)
            outcome = value
        except Exception as error:
            outcome = raised(error, perf_counter())
        finally:
            del self._runs[id(claim)]
            self._ended += 1
        job.outcome = outcome
        self._reporter.end(claim)
        return outcome

    def _measure(self, pause_s: float) -> None:
        """Compute how many calls to prefetch, and release those that wait behind slow ones."""
        now = self._loop.time()
        pace = self._ended / (now - self._measured_at)
        self._ahead = min(MAX_AHEAD, int(pace * _AHEAD_S))
        if self._ended:
            self._progress_at = now
            pause_s = _AHEAD_S
        elif now >= self._progress_at + _PATIENCE_S:
            self.release_waiting(Released("the jobs before it take too long"))
        self._measured_at, self._ended = now, 0
        self._timer = None
        if not self._runs:
            self._ahead = 0
        else:
            later_s = min(_MEASURE_MOST_S, 2 * pause_s)
            self._timer = self._loop.call_later(pause_s, self._measure, later_s)

    def release_waiting(self, outcome: Outcome) -> None:
        """End attempts that no thread has started."""
        released = sum(run.withdraw(outcome) for run in self._runs.values())
        if released:
            logger.info("attempts_released jobs=%d", released)

    def _perform(
        self, called: Callee, run: ThreadRun, context: Context, limit_s: float | None
    ) -> Outcome:
        """Call the function, in a thread."""
        began = perf_counter()
        if limit_s is not None:
            run.job.deadline = monotonic() + limit_s
            self._loop.call_soon_threadsafe(run.limit, limit_s)
        try:
            arguments = called.signature.decode(run.claim.arguments)
        except BaseException as error:
            return raised(error, began)
        value = called_here(called, arguments, context, self._max_payload)
        if not isinstance(value, Awaitable):
            return value
        try:
            result = self._wait_for(run.stoppable(value), context)
        except BaseException as error:
            return raised(error, began)
        return returned(called, result, self._max_payload, began)

    def _wait_for(self, work: Any, context: Context) -> Any:
        runner: asyncio.Runner | None = getattr(self._local, "runner", None)
        if runner is None:
            runner = self._local.runner = asyncio.Runner()
            helpers = LoopThreads(f"{threading.current_thread().name}-helper")
            runner.get_loop().set_default_executor(helpers)
        try:
            return runner.run(work, context=context)
        except (SystemExit, KeyboardInterrupt):
            # Such an exception stops the loop while its other tasks are running.
            self._close_runner()
            raise

    def _close_runner(self) -> None:
        """Cancel the remaining tasks of this thread's loop, and close it."""
        runner: asyncio.Runner | None = getattr(self._local, "runner", None)
        if runner is not None:
            self._local.runner = None
            runner.close()

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        run = self._runs.get(id(claim))
        return run is not None and run.interrupt(outcome)

    def _left(self, run: ThreadRun, ends_soon: bool) -> None:
        self._stuck += 1
        run.call.late = self._unstuck
        if not ends_soon:
            logger.warning(
                "job %s (%s) runs in a thread, which cannot be stopped: it occupies its slot until "
                "it returns (%d of %d are occupied), and its result is dropped",
                run.claim.id,
                run.claim.func,
                self._stuck,
                self._concurrency,
            )

    def _unstuck(self) -> None:
        self._stuck -= 1

    async def stop(self) -> None:
        """Stop the threads. A stuck thread is left behind and does not block the exit."""
        if self._timer is not None:
            self._timer.cancel()
        await self._threads.stop()

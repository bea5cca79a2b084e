"""The process executor: runs jobs in separate processes.

A job that holds the interpreter's lock, leaks memory, crashes or never ends affects only its own
executor process, and can be stopped at any time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import sys
from collections import deque
from collections.abc import Sequence
from time import perf_counter

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Outcome, Released
from chancy.context.context import Progress
from chancy.executors.base import NO_CALLBACKS, AttemptCallbacks, FindFunction
from chancy.executors.imports import load
from chancy.executors.invocation import raised
from chancy.executors.process import memory
from chancy.executors.process import protocol as frames
from chancy.executors.process.attempt import ProcessAttempt
from chancy.executors.process.child_handle import ChildProcess
from chancy.executors.process.logs import LogRelay
from chancy.executors.process.pool import ChildPool
from chancy.executors.process.prefetch import LATE_S
from chancy.executors.process.protocol import Frame
from chancy.executors.process.settings import JobEnvironment
from chancy.job.limits import NO_LIMITS, Limits, decode_limits
from chancy.queue.executor_options import ProcessOptions

logger = logging.getLogger("chancy.executors.process")

#: Seconds without any job ending after which waiting attempts are released.
_PATIENCE_S = 1.0
#: The same while no executor process is running.
_PATIENCE_BROKEN_S = 5.0


class ProcessExecutor:
    """Keeps ``concurrency`` executor processes running. Each runs one job at a time, in its main
    thread; coroutine functions run in an event loop there.

    Calls are prefetched: as many as an executor process runs in 10 ms at its current pace, and
    `slots` grows and shrinks accordingly. Calls that it has not started are withdrawn once it has
    been busy for 50 ms, or when it dies: only running jobs can be `Lost`.

    :param max_payload: maximum size of an encoded result in bytes.
    :param sys_path: module search path of the executor processes; None takes ``sys.path`` at start.
    :param limits: limits of claims that have none of their own.
    :param callbacks: called for reports of running jobs.
    :param environment: see `JobEnvironment`; None for plain jobs.
    """

    def __init__(
        self,
        *,
        concurrency: int,
        find: FindFunction,
        max_payload: int,
        sys_path: Sequence[str] | None = None,
        options: ProcessOptions | None = None,
        limits: Limits = NO_LIMITS,
        callbacks: AttemptCallbacks = NO_CALLBACKS,
        environment: JobEnvironment | None = None,
    ) -> None:
        self._find = find
        self._known: set[str] = set()
        self._options = options or ProcessOptions()
        self._limits = limits
        self._callbacks = callbacks
        self._environment = environment
        self._log_relay = LogRelay()
        self._pool = ChildPool(
            concurrency,
            lambda number: ChildProcess(number, self, self._options),
            self._pool_changed,
            start=lambda child, path: child.start(
                max_payload, path, callbacks.completion, environment
            ),
            sys_path=sys_path,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count(1)
        self._slots = 0
        # By identity of the claim, which the attempt references: its id is slow to hash.
        self._attempts: dict[int, ProcessAttempt] = {}
        self._waiting: deque[ProcessAttempt] = deque()
        self._dispatch_scheduled = False
        self._progress_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._storing: set[asyncio.Task[None]] = set()

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def broken(self) -> str | None:
        return self._pool.broken

    async def start(self) -> None:
        """Start the executor processes; returns once each is ready or has failed once."""
        self._loop = asyncio.get_running_loop()
        if not memory.keeps_limits:
            logger.warning("memory_limits_unkept platform=%s", sys.platform)
        await self._pool.start()

    async def stop(self) -> None:
        """Stop the executor processes: they exit when idle, and are killed after a grace period."""
        await self._pool.stop()
        if self._timer is not None:
            self._timer.cancel()

    async def run(self, claim: Claim) -> Outcome:
        loop = self._loop
        assert loop is not None, "the executor has not been started"
        try:
            if claim.func not in self._known:
                await load(claim.func, self._find)
                self._known.add(claim.func)
            limits = (
                decode_limits(claim.limits).over(self._limits) if claim.limits else self._limits
            )
            attempt = ProcessAttempt(next(self._numbers), claim, limits, loop.create_future())
        except BaseException as error:
            return raised(error, perf_counter())
        self._attempts[id(claim)] = attempt
        if not self._waiting:
            self._progress_at = loop.time()
        self._waiting.append(attempt)
        if not self._dispatch_scheduled:
            self._dispatch_soon(loop)
        try:
            return await attempt.future
        except asyncio.CancelledError:
            self._interrupt(attempt, Released("its consumer was stopped"))
            raise
        finally:
            del self._attempts[id(claim)]

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        attempt = self._attempts.get(id(claim))
        if attempt is None or attempt.future.done():
            return False
        self._interrupt(attempt, outcome)
        return True

    def _interrupt(self, attempt: ProcessAttempt, outcome: Outcome) -> None:
        if attempt.child is None:
            attempt.finish(outcome)
        else:
            attempt.child.interrupt(attempt, outcome, self._now())
            self.check_at(self._now() + self._options.grace_s)

    # Dispatch

    def _dispatch_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        # One dispatch serves all consumers that have found work in this turn of the loop.
        self._dispatch_scheduled = True
        loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Give waiting attempts to executor processes with room, in order."""
        self._dispatch_scheduled = False
        waiting = self._waiting
        if not waiting:
            return
        now = self._now()
        while waiting:
            free = [child for child in self._pool.ready if child.room > 0]
            if not free:
                break
            free.sort(key=lambda child: (child.missed, child.held))
            share = -(-len(waiting) // len(free))
            for child in free:
                self._fill(child, min(child.room, share), now)
        self.check_at(now + LATE_S)

    def _fill(self, child: ChildProcess, share: int, now: float) -> None:
        waiting = self._waiting
        while share > 0 and waiting:
            attempt = waiting.popleft()
            if attempt.future.done():
                continue
            if not child.give(attempt, now):
                waiting.appendleft(attempt)
                return
            share -= 1

    def _now(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def check_at(self, at: float) -> None:
        """Check the executor processes at this time, or sooner."""
        if (
            self._loop is None
            or at == math.inf
            or (self._timer is not None and self._timer.when() <= at)
        ):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self._now()
        due = min((child.check(now) for child in self._pool.ready), default=math.inf)
        if self._waiting:
            due = min(due, self._release_stuck(now))
        self._count_slots()
        if due < math.inf:
            self.check_at(max(due, now + 0.001))

    def _release_stuck(self, now: float) -> float:
        """Release attempts that no executor process accepts. Returns when to check again."""
        patience_s = _PATIENCE_S if self._pool.ready else _PATIENCE_BROKEN_S
        if now < self._progress_at + patience_s:
            return self._progress_at + patience_s
        waiting = [attempt for attempt in self._waiting if not attempt.future.done()]
        self._waiting.clear()
        for attempt in waiting:
            attempt.finish(Released("the jobs before it take too long"))
        if waiting:
            logger.info("attempts_released jobs=%d", len(waiting))
        return math.inf

    def _count_slots(self) -> None:
        self._slots = self._pool.count_slots()

    # Callbacks of the executor processes

    def changed(self, child: ChildProcess) -> None:
        self._progress_at = self._now()
        if child.depth != child.counted:
            self._count_slots()
        self._dispatch()

    def withdrawn(self, attempts: Sequence[ProcessAttempt]) -> None:
        for attempt in reversed(attempts):
            attempt.child = None
            if not attempt.future.done():
                self._waiting.appendleft(attempt)
        if self._waiting and not self._dispatch_scheduled and self._loop is not None:
            self._dispatch_soon(self._loop)

    def reported(self, attempt: ProcessAttempt | None, frame: Frame) -> None:
        kind, _, number, body = frame
        claim = None if attempt is None else attempt.claim
        try:
            if kind == frames.LOG:
                self._log_relay.relay(claim, int(number), body)
            elif claim is not None and kind == frames.COMPLETING:
                self._callbacks.completing(claim)
            elif claim is not None:
                self._callbacks.report(claim, Progress(number, body.decode(errors="replace")))
        except Exception:
            logger.exception("report_failed job=%s", claim.id if claim else None)

    def store_requested(
        self, child: ChildProcess, attempt: ProcessAttempt, number: float, meta: str
    ) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._store(child, attempt, number, meta), name="chancy step")
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store(
        self, child: ChildProcess, attempt: ProcessAttempt, number: float, meta: str
    ) -> None:
        error: BaseException | None = None
        try:
            await self._callbacks.store(attempt.claim, meta)
        except Exception as raised:
            error = raised
        child.stored(attempt.number, number, error)

    def initializer_failed(self, child: ChildProcess, failure: Failure) -> None:
        logger.error(
            "child_initializer_failed %s initializer=%s error=%s: %s\n%s",
            child,
            self._environment.application if self._environment else self._options.initializer,
            failure.types[0],
            failure.message,
            failure.trace,
        )

    def _pool_changed(self) -> None:
        self._count_slots()
        if self._waiting and not self._dispatch_scheduled and self._loop is not None:
            self._dispatch_soon(self._loop)

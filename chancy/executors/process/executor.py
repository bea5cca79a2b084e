"""Runs jobs in children of the worker.

A job that holds the interpreter, leaks, crashes or never ends takes nothing but its own child
with it, and can be stopped at any moment.
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
from chancy.executors.invocation import raised
from chancy.executors.process import memory
from chancy.executors.process import protocol as frames
from chancy.executors.process.attempt import ProcessAttempt
from chancy.executors.process.child_handle import ChildProcess
from chancy.executors.process.logs import LogRelay
from chancy.executors.process.pool import ChildPool
from chancy.executors.process.prefetch import LATE_S
from chancy.executors.process.protocol import Frame
from chancy.job.limits import NO_LIMITS, Limits, decode_limits
from chancy.queue.executor_options import ProcessOptions

logger = logging.getLogger("chancy.executors.process")

#: Attempts that no child has taken go back once no job has ended for so many seconds.
_PATIENCE_S = 1.0
#: Seconds that they wait for a child when there is none.
_PATIENCE_BROKEN_S = 5.0


class ProcessExecutor:
    """Keeps ``concurrency`` children running. A child runs one job at a time, in its main thread;
    coroutine functions run in a loop there.

    Calls are handed over ahead, as many as a child runs in 10 ms at the pace just seen, and
    `slots` grows and shrinks with that. What a child has not begun is taken back once it has been
    busy for 50 ms, and when it dies: nothing but what runs in it can be `Lost`.

    With ``jobs_per_child`` above 1 a child runs so many coroutines at a time. A plain function
    runs between their steps, and they wait for it, on their own time. Whose limit makes it
    necessary to kill such a child is the one at fault, and those beside it are released; if it
    dies by itself, all that run in it are `Lost`, and each runs without company the next time.

    :param max_payload: bytes that an encoded result may have.
    :param sys_path: where children look for modules; None takes ``sys.path`` as it is at start.
    :param limits: of claims that have none of their own.
    :param ties: who takes what running jobs say.
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
        ties: AttemptCallbacks = NO_CALLBACKS,
    ) -> None:
        self._find = find
        self._known: set[str] = set()
        self._options = options or ProcessOptions()
        self._limits = limits
        self._ties = ties
        self._echo = LogRelay()
        self._crew = ChildPool(
            concurrency,
            lambda number: ChildProcess(number, self, self._options),
            self._crew_changed,
            start=lambda child, path: child.start(max_payload, path, ties.completion),
            sys_path=sys_path,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count(1)
        self._slots = 0
        # By identity of the claim, which the attempt holds: its id is slow to hash.
        self._attempts: dict[int, ProcessAttempt] = {}
        self._waiting: deque[ProcessAttempt] = deque()
        self._handing_out = False
        self._moved_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._keeping: set[asyncio.Task[None]] = set()

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def broken(self) -> str | None:
        return self._crew.broken

    async def start(self) -> None:
        """Start the children side by side; returns once each is ready, or has failed once."""
        self._loop = asyncio.get_running_loop()
        if not memory.keeps_limits:
            logger.warning("memory_limits_unkept platform=%s", sys.platform)
        await self._crew.start()

    async def stop(self) -> None:
        """End the children: idle ones by themselves, others by force after a grace."""
        await self._crew.stop()
        if self._timer is not None:
            self._timer.cancel()

    async def run(self, claim: Claim) -> Outcome:
        loop = self._loop
        assert loop is not None, "the executor has not been started"
        try:
            if claim.func not in self._known:
                self._find(claim.func)
                self._known.add(claim.func)
            limits = (
                decode_limits(claim.limits).over(self._limits) if claim.limits else self._limits
            )
            attempt = ProcessAttempt(next(self._numbers), claim, limits, loop.create_future())
        except BaseException as error:
            return raised(error, perf_counter())
        self._attempts[id(claim)] = attempt
        if not self._waiting:
            self._moved_at = loop.time()
        self._waiting.append(attempt)
        if not self._handing_out:
            self._hand_out_soon(loop)
        try:
            return await attempt.future
        except asyncio.CancelledError:
            self._interrupt(attempt, Released("its consumer was torn down"))
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
            attempt.end(outcome)
        else:
            attempt.child.interrupt(attempt, outcome, self._now())
            self._watch(self._now() + self._options.grace_s)

    # Handing out

    def _hand_out_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        # Once for all the consumers that have found work in this turn of the loop.
        self._handing_out = True
        loop.call_soon(self._hand_out)

    def _hand_out(self) -> None:
        """Give the children what they have room for, in order."""
        self._handing_out = False
        waiting = self._waiting
        if not waiting:
            return
        now = self._now()
        while waiting:
            free = [child for child in self._crew.ready if child.room > 0]
            if not free:
                break
            free.sort(key=lambda child: (child.missed, child.held))
            share = -(-len(waiting) // len(free))
            for child in free:
                self._fill(child, min(child.room, share), now)
        self._watch(now + LATE_S)

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

    def _watch(self, at: float) -> None:
        """See to it that the children are looked at then, or sooner."""
        if self._loop is None or (self._timer is not None and self._timer.when() <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._now()
        due = min((child.look(now) for child in self._crew.ready), default=math.inf)
        if self._waiting:
            due = min(due, self._lose_patience(now))
        self._count_slots()
        if due < math.inf:
            self._watch(max(due, now + 0.001))

    def _lose_patience(self, now: float) -> float:
        """Give back what no child takes, for others to run. Returns when to look again."""
        patience_s = _PATIENCE_S if self._crew.ready else _PATIENCE_BROKEN_S
        if now < self._moved_at + patience_s:
            return self._moved_at + patience_s
        waiting = [attempt for attempt in self._waiting if not attempt.future.done()]
        self._waiting.clear()
        for attempt in waiting:
            attempt.end(Released("the jobs before it take long"))
        if waiting:
            logger.info("attempts_released jobs=%d", len(waiting))
        return math.inf

    def _count_slots(self) -> None:
        self._slots = self._crew.count_slots()

    # For the children

    def changed(self, child: ChildProcess) -> None:
        self._moved_at = self._now()
        if child.depth != child.counted:
            self._count_slots()
        self._hand_out()

    def bounced(self, attempts: Sequence[ProcessAttempt]) -> None:
        for attempt in reversed(attempts):
            attempt.child = None
            if not attempt.future.done():
                self._waiting.appendleft(attempt)
        if self._waiting and not self._handing_out and self._loop is not None:
            self._hand_out_soon(self._loop)

    def heard(self, attempt: ProcessAttempt | None, frame: Frame) -> None:
        kind, _, number, body = frame
        claim = None if attempt is None else attempt.claim
        try:
            if kind == frames.LOG:
                self._echo.say(claim, int(number), body)
            elif claim is not None and kind == frames.COMPLETING:
                self._ties.completing(claim)
            elif claim is not None:
                self._ties.report(claim, Progress(number, body.decode(errors="replace")))
        except Exception:
            logger.exception("report_failed job=%s", claim.id if claim else None)

    def asked_to_keep(
        self, child: ChildProcess, attempt: ProcessAttempt, number: float, meta: str
    ) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._keep(child, attempt, number, meta), name="chancy step")
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def _keep(
        self, child: ChildProcess, attempt: ProcessAttempt, number: float, meta: str
    ) -> None:
        error: BaseException | None = None
        try:
            await self._ties.keep(attempt.claim, meta)
        except Exception as raised:
            error = raised
        child.kept(attempt.number, number, error)

    def uninitialized(self, child: ChildProcess, failure: Failure) -> None:
        logger.error(
            "child_initializer_failed %s initializer=%s error=%s: %s\n%s",
            child,
            self._options.initializer,
            failure.types[0],
            failure.message,
            failure.trace,
        )

    def _crew_changed(self) -> None:
        self._count_slots()
        if self._waiting and not self._handing_out and self._loop is not None:
            self._hand_out_soon(self._loop)

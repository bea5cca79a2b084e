"""The process executor: runs jobs in separate processes.

A job that holds the interpreter's lock, leaks memory, crashes or never ends affects only its own
executor process, and can be stopped at any time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Released
from chancy.context.context import Progress
from chancy.executors.imports import load, refused
from chancy.executors.process import memory
from chancy.executors.process import protocol as frames
from chancy.executors.process.call import ProcessAttempt
from chancy.executors.process.child_handle import STOPPED, ChildProcess
from chancy.executors.process.group import ChildGroup, ChildPool, turn_is_over
from chancy.executors.process.logs import LogRelay, RelayRecord
from chancy.executors.process.prefetch import LATE_S
from chancy.executors.process.protocol import Frame
from chancy.executors.process.settings import ChildKind
from chancy.executors.setup import ExecutorSetup
from chancy.job.limits import decode_limits
from chancy.queue.executor_options import ProcessOptions

logger = logging.getLogger("chancy.executors.process")

#: Seconds without any job ending after which waiting attempts are released.
_PATIENCE_S = 1.0
#: The same while no executor process is running.
_PATIENCE_BROKEN_S = 5.0
#: Seconds for which an executor process is kept for an executor that had to release its attempts:
#: more than a puller takes to notice that there is room.
_RESERVED_S = 0.7
#: Seconds after which slots are counted again, since other executors borrow processes or leave them
#: idle: less than a puller waits between two checks for room.
_RECOUNT_S = 0.4


class ProcessExecutor:
    """Runs up to ``concurrency`` jobs at a time in executor processes. Each runs one job at a time,
    in its main thread; coroutine functions run in an event loop there.

    It borrows executor processes from a pool while it has calls. If other executors wait, it gives
    one back after as many turns as its weight, as soon as that has ended the job it runs.

    Calls are prefetched: as many as an executor process runs in 10 ms at its current pace, and one
    while they take less than 50 ms. `slots` grows and shrinks accordingly. Calls that it has not
    started are withdrawn once it has been busy for 50 ms, or when it dies: only running jobs can be
    `Lost`.

    :param relay: gets the log records of jobs; None logs them in this process.
    :param kind: the executor processes; None: those of the setup.
    """

    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        setup: ExecutorSetup,
        relay: RelayRecord | None = None,
        kind: ChildKind | None = None,
    ) -> None:
        assert isinstance(setup.options, ProcessOptions)
        self.concurrency = setup.concurrency
        self.weight = setup.options.weight
        self._find = setup.find
        self._known: set[str] = set()
        self._options = setup.options
        self._limits = setup.limits
        self._callbacks = setup.callbacks
        self._relay_record = relay or LogRelay().relay
        self._pool = setup.pool or ChildPool(setup.concurrency)
        # Queues of all weights share them.
        self._kind = kind or setup.child_kind(replace(self._options, weight=1))
        self._group: ChildGroup | None = None
        #: The executor processes that it has borrowed.
        self._children: list[ChildProcess] = []
        self._slots = 0
        self._counted_at = 0.0
        #: Whether attempts were released because there was no executor process for them. Until
        #: there is one, no more are accepted.
        self._starved = False
        self._reserved_until = 0.0
        # By identity of the claim, which the attempt references: its id is slow to hash.
        self._attempts: dict[int, ProcessAttempt] = {}
        self._waiting: deque[ProcessAttempt] = deque()
        self._dispatch_scheduled = False
        self._progress_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._storing: set[asyncio.Task[None]] = set()

    @property
    def slots(self) -> int:
        if not self._children or self._now() >= self._counted_at + _RECOUNT_S:
            self._count_slots()
        return self._slots

    @property
    def broken(self) -> str | None:
        return None if self._group is None else self._group.broken

    async def start(self) -> None:
        """Start executor processes, if fewer run than may; returns once each is ready or has failed
        once."""
        self._loop = asyncio.get_running_loop()
        if not memory.keeps_limits:
            logger.warning("memory_limits_unenforced platform=%s", sys.platform)
        self._group = self._pool.group(self._kind)
        await self._group.attach(self)

    async def stop(self) -> None:
        """Give the executor processes back; those that no other queue uses are stopped."""
        for child in list(self._children):
            if child.held:
                child.kill(STOPPED)
            else:
                self._give_back(child)
        if self._group is not None:
            await self._group.detach(self)
        if self._timer is not None:
            self._timer.cancel()

    async def run(self, claim: Claim) -> Outcome:
        try:
            if claim.func not in self._known:
                await load(claim.func, self._find)
                self._known.add(claim.func)
            limits = (
                decode_limits(claim.limits).over(self._limits) if claim.limits else self._limits
            )
            attempt = ProcessAttempt(claim, limits, self._loop.create_future())
        except BaseException as error:
            return refused(error, perf_counter())
        self._attempts[id(claim)] = attempt
        if not self._waiting:
            self._progress_at = self._now()
        self._waiting.append(attempt)
        self._dispatch_soon()
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

    def release_waiting(self, outcome: Outcome) -> None:
        """End attempts that no executor process has received."""
        for child in self._children:
            child.withdraw()
        for attempt in self._waiting:
            attempt.finish(outcome)
        self._waiting.clear()

    # Dispatch

    def _dispatch_soon(self) -> None:
        # One dispatch serves all consumers that have found work in this turn of the loop.
        if self._waiting and not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Give waiting attempts to executor processes with room, in order."""
        self._dispatch_scheduled = False
        waiting = self._waiting
        if not waiting:
            return
        self._borrow()
        now = self._now()
        while waiting:
            free = [child for child in self._children if child.room > 0]
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

    def _borrow(self) -> None:
        """Borrow executor processes for the attempts, if there are any."""
        assert self._group is not None
        calls = len(self._waiting) + sum(child.held for child in self._children)
        wanted = min(self.concurrency, calls)
        while self.borrowed < wanted:
            child = self._group.borrow(self, wanted - self.borrowed)
            if child is None:
                return
            self._children.append(child)
            self._count_slots()

    def _give_back(self, child: ChildProcess) -> None:
        assert self._group is not None
        self._children.remove(child)
        self._group.give_back(child)
        self._count_slots()

    def give_back_idle(self) -> None:
        # While attempts wait, they are about to be given to an idle one, which was lent for them.
        if not self._waiting and self._now() >= self._reserved_until:
            for child in list(self._children):
                if not child.held:
                    self._give_back(child)

    def _now(self) -> float:
        return self._loop.time()

    def check_at(self, at: float) -> None:
        """Check the executor processes at this time, or sooner."""
        if at == math.inf or (self._timer is not None and self._timer.when() <= at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._check)

    def _check(self) -> None:
        self._timer = None
        now = self._now()
        due = min((child.check(now) for child in list(self._children)), default=math.inf)
        if self._waiting:
            due = min(due, self._release_stuck(now))
        else:
            self.give_back_idle()
        self._count_slots()
        if due < math.inf:
            self.check_at(max(due, now + 0.001))

    def _release_stuck(self, now: float) -> float:
        """Release attempts that no executor process accepts. Returns when to check again."""
        ready = self._group is not None and self._group.ready
        patience_s = _PATIENCE_S if ready else _PATIENCE_BROKEN_S
        if now < self._progress_at + patience_s:
            return self._progress_at + patience_s
        waiting = [attempt for attempt in self._waiting if not attempt.future.done()]
        self._waiting.clear()
        for attempt in waiting:
            attempt.finish(Released("the jobs before it take too long"))
        if waiting:
            logger.info("attempts_released jobs=%d", len(waiting))
            if ready and not self._children:
                self._starved = True
                self._count_slots()
        return math.inf

    def _count_slots(self) -> None:
        group = self._group
        if group is None:
            return
        slots = 0
        for child in self._children:
            child.counted = child.slots
            slots += child.counted
        if (missing := self.concurrency - self.borrowed) > 0:
            slots += group.count_slots(missing)
        if not slots and not self._starved and group.ready and not self._children:
            slots = 1  # a job that waits makes other executors give one back
        self._slots = slots
        self._counted_at = self._now()

    # Callbacks of the group

    @property
    def borrowed(self) -> int:
        return sum(child.slots > 0 for child in self._children)

    @property
    def waits(self) -> bool:
        return bool(self._waiting) or self._starved

    def lent(self, child: ChildProcess) -> None:
        self._children.append(child)
        starved, self._starved = self._starved, False
        self._count_slots()
        if self._waiting:
            self.group_changed()
        elif starved:
            self._reserved_until = self._now() + _RESERVED_S
            self.check_at(self._reserved_until)

    def gone(self, child: ChildProcess) -> None:
        self._children.remove(child)

    def group_changed(self) -> None:
        self._count_slots()
        self._dispatch_soon()

    # Callbacks of the executor processes

    def changed(self, child: ChildProcess) -> None:
        self._progress_at = self._now()
        assert self._group is not None
        contended = self._group.contended(self)
        if contended and turn_is_over(self.weight, child.answered, child.lent_s):
            child.drain()
        elif child.draining and not contended:
            child.draining = False
        if child.slots != child.counted:
            self._count_slots()
        self._dispatch()
        if child.held:
            return
        if contended and child.answered >= self.weight and child in self._children:
            self._give_back(child)
        elif not self._waiting:
            self.check_at(self._progress_at + LATE_S)

    def withdrawn(self, attempts: Sequence[ProcessAttempt]) -> None:
        for attempt in reversed(attempts):
            attempt.child = None
            if not attempt.future.done():
                self._waiting.appendleft(attempt)
        self._dispatch_soon()

    def reported(self, attempt: ProcessAttempt | None, frame: Frame) -> None:
        kind, _, number, body = frame
        claim = None if attempt is None else attempt.claim
        try:
            if kind == frames.LOG:
                self._relay_record(claim, int(number), body)
            elif claim is not None and kind == frames.COMPLETING:
                self._callbacks.completing(claim)
            elif claim is not None:
                self._callbacks.report(claim, Progress(number, body.decode(errors="replace")))
        except Exception:
            logger.exception("report_failed job=%s", claim.id if claim else None)

    def store_requested(
        self, child: ChildProcess, attempt: ProcessAttempt, number: float, meta: str
    ) -> None:
        storing = self._store(child, attempt, number, meta)
        task = self._loop.create_task(storing, name="chancy checkpoint")
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

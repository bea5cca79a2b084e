"""Runs the claims of one queue."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.logs import debug_enabled, log_settled, log_started
from chancy.attempt.outcome import Outcome, Raised, Released
from chancy.attempt.settlement import Settlement
from chancy.clock import Clock
from chancy.executors.base import Executor
from chancy.states import State
from chancy.worker.unknown_functions import UnknownFunctions

logger = logging.getLogger("chancy.worker")

#: Jobs a consumer runs before it yields to the loop, if none of them waits for anything.
_TURN = 64
#: Ended jobs between two checks for room, while claims wait.
_CHECK_EVERY = 16
#: Seconds between two measurements of the pace. The first comes sooner: otherwise a runner would
#: claim few jobs at a time for a sixth of a drain of 20,000 jobs.
_PACE_EVERY_S = 0.05
_FIRST_PACE_S = 0.005
#: Claims are prefetched for this many seconds of work at the current pace.
_AHEAD_S = 0.1
_PREFETCH_LIMIT = 1_000
#: Seconds without any job ending after which waiting claims are released to other workers.
_PATIENCE_S = 1.0

_SUCCEEDED = State.SUCCEEDED


def _all(_: Claim) -> bool:
    return True


class Runner:
    """Runs claims on an executor with a fixed set of consumers, and judges the outcomes.

    There is no task for each job: a consumer awaits one job after the other.

    :param unknown: the functions whose jobs are not run.
    :param prefetch_limit: claims to hold in addition to the running ones; None: depends on the
        pace of the jobs.
    """

    def __init__(
        self,
        executor: Executor,
        judge: Callable[[Claim, Outcome], Settlement],
        settle: Callable[[Settlement], None],
        clock: Clock,
        unknown: UnknownFunctions,
        prefetch_limit: int | None = None,
    ) -> None:
        self._unknown = unknown
        self._most_prefetched = (
            _PREFETCH_LIMIT if prefetch_limit is None else min(prefetch_limit, _PREFETCH_LIMIT)
        )
        self._prefetch_limit = self._most_prefetched
        self._executor = executor
        self._judge = judge
        self._settle = settle
        self._clock = clock
        self._waiting: deque[Claim] = deque()
        # By identity: hashing the id of a job takes longer than everything else here.
        self._running: dict[int, Claim] = {}
        self._consumers: set[asyncio.Task[None]] = set()
        self._sleepers: deque[asyncio.Future[None]] = deque()
        self._waking = 0
        self._finished = 0
        # Read once for each batch of claims: two checks for each job would cost 0.1 µs.
        self._log_all = debug_enabled()
        self._pace = 0.0
        self._paced_at = clock.monotonic()
        self._paced_finished = 0
        self._progress_at = clock.monotonic()
        self._progress_finished = 0
        #: Set when there is room for more claims.
        self.roomy = asyncio.Event()
        self.roomy.set()
        #: Set while nothing waits or runs.
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def capacity(self) -> int:
        """Claims to hold: as many as can run, and a prefetch if the jobs are short."""
        slots = self._executor.slots
        return slots + min(self._prefetch_limit, int(self._pace * _AHEAD_S)) if slots else 0

    @property
    def room(self) -> int:
        """Number of claims to take now.

        While claims wait here, a statement for only a few more is not worth its cost. Once none
        waits, a statement for a single free slot is.
        """
        self._measure()
        capacity = self.capacity
        free = capacity - len(self._waiting) - len(self._running)
        worth_it = capacity // 4 if self._waiting else 1
        return free if free >= worth_it else 0

    def adapt_prefetch(self, asked: int, claimed: int) -> None:
        """Prefetch only while the rules of a queue let more jobs start than have room here.

        A job that only waits here takes a slot of a rule that another job could have elsewhere, so
        a claim that gets fewer jobs than it asked for ends the prefetch.
        """
        more = 2 * claimed if claimed >= asked else 0
        self._prefetch_limit = min(more, self._most_prefetched)

    @property
    def backlogged(self) -> bool:
        """Whether claims wait here."""
        return bool(self._waiting)

    @property
    def ids(self) -> set[UUID]:
        """Ids of the jobs that wait or run here."""
        return {claim.id for claim in (*self._waiting, *self._running.values())}

    def give(self, claims: Sequence[Claim]) -> None:
        """Queue claims to run."""
        if not claims:
            return
        if not self._waiting:
            self._progress_at, self._progress_finished = self._clock.monotonic(), self._finished
        self._log_all = debug_enabled()
        self._waiting.extend(claims)
        self.idle.clear()
        if not self._waking:
            self._wake_one()

    def ask_to_stop(self, job_id: UUID, outcome: Outcome) -> bool:
        """Stop a job that runs here, or remove it if it waits; False if it does neither."""
        for claim in self._running.values():
            if claim.id == job_id:
                self._executor.interrupt(claim, outcome)
                return True
        for index, claim in enumerate(self._waiting):
            if claim.id == job_id:
                del self._waiting[index]
                self._conclude(claim, outcome)
                self._update_state()
                return True
        return False

    def release_waiting(self, why: str, only: Callable[[Claim], bool] = _all) -> int:
        """Release claims that have not started; returns how many."""
        released = [claim for claim in self._waiting if only(claim)]
        kept = [claim for claim in self._waiting if not only(claim)]
        self._waiting.clear()
        self._waiting.extend(kept)
        for claim in released:
            self._conclude(claim, Released(why))
        self._update_state()
        return len(released)

    def release_stuck(self) -> None:
        """Release prefetched claims when the jobs before them turn out to be slow."""
        now = self._clock.monotonic()
        if self._progress_finished != self._finished:
            self._progress_at, self._progress_finished = now, self._finished
        late = now - self._progress_at > _PATIENCE_S
        if late and self._waiting and len(self._running) >= self._executor.slots:
            self._pace = 0.0
            released = self.release_waiting("the jobs before it take too long")
            logger.info("claims_released jobs=%d", released)

    def interrupt_all(self, outcome: Outcome, only: Callable[[Claim], bool]) -> None:
        """Stop running jobs."""
        for claim in list(self._running.values()):
            if only(claim):
                self._executor.interrupt(claim, outcome)

    async def close(self) -> None:
        """Stop the consumers. Called when nothing waits or runs, or to abandon the rest."""
        for task in self._consumers:
            task.cancel()
        if self._consumers:
            await asyncio.wait(self._consumers)
        self._consumers.clear()

    def _measure(self) -> None:
        now = self._clock.monotonic()
        passed = now - self._paced_at
        if passed >= (_PACE_EVERY_S if self._pace else _FIRST_PACE_S):
            self._pace = (self._finished - self._paced_finished) / passed
            self._paced_at, self._paced_finished = now, self._finished

    def _wake_one(self) -> None:
        """Wake one more consumer. It wakes the next one when it has found work, so the first
        consumer runs all jobs that never wait."""
        while self._sleepers:
            sleeper = self._sleepers.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                self._waking += 1
                return
        if len(self._consumers) < self._executor.slots:
            task = asyncio.create_task(self._consume(), name="chancy consumer")
            self._consumers.add(task)
            task.add_done_callback(self._consumers.discard)
            self._waking += 1

    async def _consume(self) -> None:
        loop = asyncio.get_running_loop()
        waiting = self._waiting
        unknown, tried = self._unknown.names, self._unknown.tried
        woken = True
        turn = 0
        while True:
            if woken:
                woken = False
                self._waking -= 1
            if not waiting:
                sleeper: asyncio.Future[None] = loop.create_future()
                self._sleepers.append(sleeper)
                await sleeper
                woken = True
                turn = 0
                continue
            claim = waiting.popleft()
            if waiting and not self._waking:
                self._wake_one()
            if unknown and claim.func in unknown:
                outcome = self._unknown.outcome_of(claim)
            else:
                self._running[id(claim)] = claim
                if self._log_all:
                    log_started(claim)
                try:
                    outcome = await self._executor.run(claim)
                except asyncio.CancelledError:
                    # Otherwise it would stay `running`, and count as a crash.
                    self._conclude(claim, Released("the worker stopped before the job ended"))
                    del self._running[id(claim)]
                    self._update_state()
                    raise
                except Exception as error:
                    logger.exception("executor_failed job=%s", claim.id)
                    outcome = Raised(Failure.of(error), error=error)
                finally:
                    self._running.pop(id(claim), None)
                if tried or isinstance(outcome, Raised):
                    outcome = self._unknown.changed(claim, outcome)
            self._conclude(claim, outcome)
            del outcome  # its exception has the variables of the job
            self._update_state()
            turn += 1
            if turn >= _TURN:
                turn = 0
                await asyncio.sleep(0)

    def _conclude(self, claim: Claim, outcome: Outcome) -> None:
        """Judge, settle and log an outcome. Never raises: that would end a consumer, and a queue
        with one slot would stall."""
        try:
            settlement = self._judge(claim, outcome)
            self._settle(settlement)
            if settlement.state is not _SUCCEEDED or self._log_all:
                log_settled(claim, outcome, settlement)
        except Exception:
            logger.exception("outcome_failed job=%s", claim.id)
        self._finished += 1

    def _update_state(self) -> None:
        if self._waiting:
            # No consumer is short of work, and every check for room costs 0.6 µs.
            if self._finished % _CHECK_EVERY:
                return
        elif not self._running:
            self.idle.set()
        if not self.roomy.is_set() and self.room > 0:
            self.roomy.set()

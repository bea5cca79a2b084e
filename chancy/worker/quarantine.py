"""Isolation of jobs whose process has died repeatedly, so that they cannot crash others again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome, Snoozed
from chancy.executors.base import Executor, WrappingExecutor
from chancy.worker.start_recorder import StartRecorder, Turn

logger = logging.getLogger("chancy.worker")

#: Crashes from which on a job runs in quarantine. The first one may be that of another job.
CRASHES = 2
#: Isolated jobs to run at a time, each alone in an executor process with the application.
CHILDREN = 2
#: Isolated jobs that may wait or run at a time; at most half of the slots, so that other jobs go
#: on.
MOST = 32
#: Seconds that a job may wait, which is also the time that the executor processes have to start.
PATIENCE_S = 3.0
#: Seconds for which a job is snoozed when no executor process was free.
_SNOOZE_S = 1.0, 3.0
#: Seconds without a job after which the executor processes are stopped.
IDLE_S = 60.0

_Key = tuple[UUID, UUID]


class QuarantineExecutor(WrappingExecutor):
    """Runs claims with several crashes in an isolated executor, all others in the usual one.

    The start of a claim with a crash is stored before it runs, so that only jobs that have started
    are charged if the worker dies again. A claim with `CRASHES` runs alone in an executor process:
    if it caused the crashes, it kills only that process; if it did not, it cannot be lost to
    another job again.

    :param executor: runs claims without crashes, or with one.
    :param starts: stores the starts of claims with crashes.
    :param make_isolated: creates the executor of the isolated processes, at the first such claim;
        None, or a result of None: the jobs of the queue cannot run in other processes.
    :param alone_here: whether a claim that cannot be isolated runs in the usual executor, one such
        claim at a time. Otherwise it waits for an executor process.
    """

    def __init__(
        self,
        executor: Executor,
        starts: StartRecorder,
        make_isolated: Callable[[], Executor | None] | None,
        *,
        alone_here: bool = False,
        idle_s: float = IDLE_S,
    ) -> None:
        super().__init__(executor)
        self._starts = starts
        self._make_isolated = make_isolated
        self._alone_here = alone_here
        self._idle_s = idle_s
        self._isolated: Executor | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._idle: asyncio.TimerHandle | None = None
        #: Claims with crashes that wait: for an executor process, or for their start to be stored.
        self._turns: dict[_Key, Turn] = {}
        #: Turns of claims that wait for an executor process, in order.
        self._queued: dict[_Key, Turn] = {}
        #: The executors of claims with crashes that run.
        self._running: dict[_Key, Executor] = {}
        #: Number of claims that have an executor process, or will have it once their start is
        #: stored.
        self._isolating = 0

    def run(self, claim: Claim) -> Coroutine[Any, Any, Outcome]:
        if not claim.crashes:
            return self._executor.run(claim)
        quarantined = self._make_isolated is not None or self._alone_here
        if claim.crashes < CRASHES or not quarantined:
            return self._run_recorded(claim, self._executor)
        return self._run_quarantined(claim)

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        if not claim.crashes:
            return self._executor.interrupt(claim, outcome)
        key = claim.id, claim.lease
        turn = self._turns.get(key)
        if turn is not None and not turn.done():
            turn.set_result(outcome)
            return True
        executor = self._running.get(key)
        return executor is not None and executor.interrupt(claim, outcome)

    async def stop(self) -> None:
        self._close()
        await self._starts.stop()
        await asyncio.gather(self._executor.stop(), *self._closing)

    async def _run_recorded(self, claim: Claim, executor: Executor) -> Outcome:
        """Run a claim once its start is stored."""
        key = claim.id, claim.lease
        turn: Turn = asyncio.get_running_loop().create_future()
        self._turns[key] = turn
        self._starts.add(claim, turn)
        try:
            outcome = await turn
        finally:
            del self._turns[key]
        if outcome is not None:
            return outcome
        self._running[key] = executor
        try:
            return await executor.run(claim)
        finally:
            del self._running[key]

    async def _run_quarantined(self, claim: Claim) -> Outcome:
        if len(self._queued) + self._isolating >= max(1, min(MOST, self.slots // 2)):
            return _later()
        loop = asyncio.get_running_loop()
        key = claim.id, claim.lease
        turn: Turn = loop.create_future()
        self._turns[key] = self._queued[key] = turn
        patience = loop.call_later(PATIENCE_S, _expire, turn)
        self._open()
        self._next()
        try:
            outcome = await turn
        finally:
            patience.cancel()
            del self._turns[key], self._queued[key]
        if outcome is not None:
            self._rest()
            return outcome
        isolated = self._isolated if self._able else None
        logger.info(
            "job_quarantined job=%s func=%s crashes=%d isolated=%s",
            claim.id,
            claim.func,
            claim.crashes,
            "no" if isolated is None else "yes",
        )
        try:
            if isolated is None and not self._alone_here:
                return _later()
            return await self._run_recorded(claim, isolated or self._executor)
        finally:
            self._isolating -= 1
            self._next()
            self._rest()

    @property
    def _able(self) -> bool:
        """Whether an executor process accepts claims, or is about to."""
        return self._isolated is not None and self._isolated.broken is None

    def _next(self) -> None:
        """Start waiting jobs while an executor process is free."""
        if self._make_isolated is not None and (self._opening is None or not self._opening.done()):
            return
        most = CHILDREN if self._able else int(self._alone_here)
        for turn in self._queued.values():
            if self._isolating >= most:
                return
            if not turn.done():
                turn.set_result(None)
                self._isolating += 1

    def _open(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._opening is None and self._make_isolated is not None:
            self._isolated = self._make_isolated()
            if self._isolated is None:
                self._make_isolated = None
                return
            self._opening = asyncio.create_task(
                self._start(self._isolated), name="chancy quarantine"
            )

    async def _start(self, isolated: Executor) -> None:
        try:
            await isolated.start()
        except Exception:
            logger.exception("quarantine_failed")
            self._close()
            return
        asyncio.get_running_loop().call_soon(self._next)

    def _rest(self) -> None:
        """Stop the executor processes after a while without jobs."""
        busy = self._queued or self._isolating
        if not busy and self._idle is None and self._isolated is not None:
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._close)

    def _close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        isolated, opening = self._isolated, self._opening
        self._idle = self._isolated = self._opening = None
        if isolated is not None and opening is not None:
            task = asyncio.create_task(_stop(isolated, opening), name="chancy quarantine stops")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _stop(isolated: Executor, opening: asyncio.Task[None]) -> None:
    opening.cancel()
    await asyncio.wait([opening])
    await isolated.stop()


def _expire(turn: Turn) -> None:
    if not turn.done():
        turn.set_result(_later())


def _later() -> Outcome:
    return Snoozed(timedelta(seconds=random.uniform(*_SNOOZE_S)))

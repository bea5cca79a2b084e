"""Isolation of jobs whose process has died before, so that they cannot crash others again."""

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
from chancy.executors.base import Executor

logger = logging.getLogger("chancy.worker")

#: Isolated jobs to run at a time, each alone in an executor process, which holds some 30 MB.
CHILDREN = 4
#: Isolated jobs that may wait or run at a time; at most half of the slots, so that other jobs go
#: on. Few, because a worker that dies again counts a crash for each.
MOST = 32
#: Seconds that a job may wait, which is also the time that the executor processes have to start.
PATIENCE_S = 3.0
#: Seconds for which a job is snoozed when no executor process was free.
_SNOOZE_S = 1.0, 3.0
#: Seconds without a job after which the executor processes are stopped.
IDLE_S = 60.0

_Key = tuple[UUID, UUID]


class QuarantineExecutor:
    """Runs claims that have crashed before in an isolated executor, all others in the usual one.

    A claim with a crash runs alone in an executor process. If it caused the crash, it kills only
    that process; if it did not, it cannot be lost to another job again.

    :param executor: runs claims without crashes.
    :param make_isolated: creates the executor of the isolated processes, at the first such claim.
    """

    def __init__(
        self, executor: Executor, make_isolated: Callable[[], Executor], *, idle_s: float = IDLE_S
    ) -> None:
        self._executor = executor
        self._make_isolated = make_isolated
        self._idle_s = idle_s
        self._isolated: Executor | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._idle: asyncio.TimerHandle | None = None
        # Result: None when the job may run, an outcome if it must not.
        self._turns: dict[_Key, asyncio.Future[Outcome | None]] = {}
        self._running = 0

    @property
    def slots(self) -> int:
        return self._executor.slots

    @property
    def broken(self) -> str | None:
        return self._executor.broken

    async def start(self) -> None:
        await self._executor.start()

    def run(self, claim: Claim) -> Coroutine[Any, Any, Outcome]:
        return self._run_isolated(claim) if claim.crashes else self._executor.run(claim)

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        if not claim.crashes:
            return self._executor.interrupt(claim, outcome)
        turn = self._turns.get((claim.id, claim.lease))
        if turn is not None and not turn.done():
            turn.set_result(outcome)
            return True
        return self._isolated is not None and self._isolated.interrupt(claim, outcome)

    async def stop(self) -> None:
        self._close()
        await asyncio.gather(self._executor.stop(), *self._closing)

    async def _run_isolated(self, claim: Claim) -> Outcome:
        if len(self._turns) + self._running >= max(1, min(MOST, self.slots // 2)):
            return _later()
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Outcome | None] = loop.create_future()
        key = claim.id, claim.lease
        self._turns[key] = turn
        patience = loop.call_later(PATIENCE_S, _expire, turn)
        self._open()
        self._next()
        try:
            outcome = await turn
        finally:
            patience.cancel()
            del self._turns[key]
        if outcome is not None:
            self._rest()
            return outcome
        logger.info(
            "job_quarantined job=%s func=%s crashes=%d", claim.id, claim.func, claim.crashes
        )
        try:
            return await self._isolated.run(claim) if self._isolated else _later()
        finally:
            self._running -= 1
            self._next()
            self._rest()

    def _next(self) -> None:
        """Start waiting jobs while an executor process is free."""
        if self._opening is None or not self._opening.done():
            return
        for turn in self._turns.values():
            if self._running >= CHILDREN:
                return
            if not turn.done():
                turn.set_result(None)
                self._running += 1

    def _open(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._opening is None:
            self._isolated = self._make_isolated()
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
        busy = self._turns or self._running
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


def _expire(turn: asyncio.Future[Outcome | None]) -> None:
    if not turn.done():
        turn.set_result(_later())


def _later() -> Outcome:
    return Snoozed(timedelta(seconds=random.uniform(*_SNOOZE_S)))

"""Jobs whose process has died before, apart from those that they could take along again."""

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

#: Jobs that run apart at a time, each alone in a child. A child holds some 30 MB.
CHILDREN = 4
#: Jobs that may be here at a time, waiting for a child or run by one, and at most half of the
#: slots, so that the others go on. Few, because a worker that dies again counts a crash for each.
MOST = 32
#: Seconds that one may wait, which is also the time that the children have to start.
PATIENCE_S = 3.0
#: Seconds until a job comes back for which there was no child.
_SNOOZE_S = 1.0, 3.0
#: Seconds without a job after which the children end.
IDLE_S = 60.0

_Key = tuple[UUID, UUID]


class QuarantineExecutor:
    """An executor for claims that share the worker's process, and another for the suspects.

    A claim with a crash runs alone in a child: if it was the killer it kills only that, and if it
    was a bystander it is not hurt again. The others see nothing of it.

    :param executor: runs what has not crashed.
    :param make_lane: makes the executor of the children; called when the first suspect comes.
    """

    def __init__(
        self, executor: Executor, make_lane: Callable[[], Executor], *, idle_s: float = IDLE_S
    ) -> None:
        self._executor = executor
        self._make_lane = make_lane
        self._idle_s = idle_s
        self._lane: Executor | None = None
        self._opening: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._idle: asyncio.TimerHandle | None = None
        # None when a job's turn has come, an outcome if it is not to run.
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
        return self._run_apart(claim) if claim.crashes else self._executor.run(claim)

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        if not claim.crashes:
            return self._executor.interrupt(claim, outcome)
        turn = self._turns.get((claim.id, claim.lease))
        if turn is not None and not turn.done():
            turn.set_result(outcome)
            return True
        return self._lane is not None and self._lane.interrupt(claim, outcome)

    async def stop(self) -> None:
        self._close()
        await asyncio.gather(self._executor.stop(), *self._closing)

    async def _run_apart(self, claim: Claim) -> Outcome:
        if len(self._turns) + self._running >= max(1, min(MOST, self.slots // 2)):
            return _later()
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Outcome | None] = loop.create_future()
        key = claim.id, claim.lease
        self._turns[key] = turn
        patience = loop.call_later(PATIENCE_S, _tire, turn)
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
            return await self._lane.run(claim) if self._lane else _later()
        finally:
            self._running -= 1
            self._next()
            self._rest()

    def _next(self) -> None:
        """Let those run whose turn it is."""
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
            self._lane = self._make_lane()
            self._opening = asyncio.create_task(self._start(self._lane), name="chancy quarantine")

    async def _start(self, lane: Executor) -> None:
        try:
            await lane.start()
        except Exception:
            logger.exception("quarantine_failed")
            self._close()
            return
        asyncio.get_running_loop().call_soon(self._next)

    def _rest(self) -> None:
        """End the children when nothing has come for a while."""
        if not self._turns and not self._running and self._idle is None and self._lane is not None:
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._close)

    def _close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        lane, opening = self._lane, self._opening
        self._idle = self._lane = self._opening = None
        if lane is not None and opening is not None:
            task = asyncio.create_task(_end(lane, opening), name="chancy quarantine ends")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _end(lane: Executor, opening: asyncio.Task[None]) -> None:
    opening.cancel()
    await asyncio.wait([opening])
    await lane.stop()


def _tire(turn: asyncio.Future[Outcome | None]) -> None:
    if not turn.done():
        turn.set_result(_later())


def _later() -> Outcome:
    return Snoozed(timedelta(seconds=random.uniform(*_SNOOZE_S)))

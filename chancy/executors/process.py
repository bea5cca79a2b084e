"""Runs jobs in children of the worker, one at a time in each.

A job that holds the interpreter, leaks, crashes or never ends takes nothing but its own child
with it, and can be stopped at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from uuid import UUID

from chancy.attempt import Claim, Outcome
from chancy.executors.base import FindFunction, Report, no_report
from chancy.executors.child_process import Attempt, ChildProcess
from chancy.executors.invocation import raised
from chancy.limits import NO_LIMITS, Limits
from chancy.options import ProcessOptions

logger = logging.getLogger(__name__)

#: Seconds before a child is started again that died before it was ready: the first, and the most.
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 10.0
#: Seconds that idle children have to end when the executor stops.
STOP_GRACE_S = 2.0
_STOPPED = "was killed to stop its job"

_Run = tuple[UUID, UUID]


class ProcessExecutor:
    """Keeps ``concurrency`` children running; coroutine functions run in a loop of the child.

    :param max_payload: bytes that an encoded result may have.
    :param sys_path: where children look for modules; None takes ``sys.path`` as it is at start.
    :param limits: of claims that have none of their own.
    :param report: takes the progress of running jobs.
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
        report: Report = no_report,
    ) -> None:
        self._concurrency = concurrency
        self._find = find
        self._max_payload = max_payload
        self._sys_path = sys_path
        self._options = options or ProcessOptions()
        self._limits = limits
        self._report = report
        self._children: set[ChildProcess] = set()
        self._keepers: list[asyncio.Task[None]] = []
        self._idle: list[ChildProcess] = []
        self._waiting: deque[Attempt] = deque()
        self._attempts: dict[_Run, Attempt] = {}
        self._stop = asyncio.Event()

    @property
    def slots(self) -> int:
        return self._concurrency

    @property
    def broken(self) -> str | None:
        return None

    async def start(self) -> None:
        """Start the children side by side; returns once each is ready, or has failed once."""
        path = sys.path if self._sys_path is None else self._sys_path
        self._sys_path = [entry or os.getcwd() for entry in path]
        loop = asyncio.get_running_loop()
        tried: list[asyncio.Future[None]] = []
        for number in range(1, self._concurrency + 1):
            tried.append(loop.create_future())
            keeper = self._keep(number, tried[-1])
            self._keepers.append(asyncio.create_task(keeper, name=f"chancy-child-{number}"))
        await asyncio.gather(*tried)

    async def _keep(self, number: int, tried: asyncio.Future[None]) -> None:
        """Have a child with this number at all times."""
        delay_s = FIRST_DELAY_S
        while not self._stop.is_set():
            ready, how = await self._live(number, tried)
            if self._stop.is_set():
                return
            if ready:
                delay_s = FIRST_DELAY_S
                level = logging.INFO if how == _STOPPED else logging.WARNING
                logger.log(level, "child %d %s: it is replaced", number, how)
            else:
                logger.error(
                    "child %d %s before it was ready: the next try is in %g s", number, how, delay_s
                )
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), delay_s)
                delay_s = min(delay_s * 2, MAX_DELAY_S)

    async def _live(self, number: int, tried: asyncio.Future[None]) -> tuple[bool, str]:
        """The life of one child. Returns whether it was ever ready, and how it ended."""
        child = ChildProcess(number, self)
        try:
            await child.start(self._max_payload, self._sys_path or ())
        except OSError as error:
            return False, f"could not be started: {error}"
        else:
            self._children.add(child)
            if self._stop.is_set():
                child.hang_up(STOP_GRACE_S)
            ready = await child.ready
            if not tried.done():
                tried.set_result(None)
            how = await child.gone
            self._children.discard(child)
            return ready, how
        finally:
            if not tried.done():
                tried.set_result(None)

    def free(self, child: ChildProcess) -> None:
        """Give a child that is free the attempt that has waited longest."""
        while self._waiting:
            attempt = self._waiting.popleft()
            if not attempt.future.done():
                attempt.hand_to(child)
                return
        self._idle.append(child)

    def going(self, child: ChildProcess) -> None:
        if child in self._idle:
            self._idle.remove(child)

    def bounced(self, attempt: Attempt) -> None:
        """Run an attempt elsewhere whose child died while it was idle, just before the call."""
        attempt.child = None
        if self._idle:
            attempt.hand_to(self._idle.pop())
        else:
            self._waiting.appendleft(attempt)

    async def run(self, claim: Claim) -> Outcome:
        try:
            self._find(claim.func)
            future = asyncio.get_running_loop().create_future()
            attempt = Attempt(claim.func, claim.arguments, future)
        except BaseException as error:
            return raised(error, perf_counter())
        run = claim.id, claim.lease
        self._attempts[run] = attempt
        if self._idle:
            attempt.hand_to(self._idle.pop())
        else:
            self._waiting.append(attempt)
        try:
            return await attempt.future
        except asyncio.CancelledError:
            if attempt.child is not None:
                attempt.child.kill(_STOPPED)
            raise
        finally:
            del self._attempts[run]

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        attempt = self._attempts.get((claim.id, claim.lease))
        if attempt is None or attempt.future.done():
            return False
        if attempt.child is None:
            attempt.end(outcome)
            return True
        attempt.given = attempt.given or outcome
        attempt.child.kill(_STOPPED)
        return True

    async def stop(self) -> None:
        """End the children: idle ones by themselves, others by force after a grace."""
        self._stop.set()
        for child in self._children:
            child.hang_up(STOP_GRACE_S)
        await asyncio.gather(*self._keepers)
        self._keepers.clear()

"""Running a claim with the `around` hooks of the plugins about it."""

from __future__ import annotations

import asyncio
import logging
from asyncio.tasks import _unregister_task
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Outcome, Raised, Returned
from chancy.context.context import CURRENT, JobContext
from chancy.context.host import DetachedHost
from chancy.executors.base import Executor
from chancy.plugin.hooks import Around
from chancy.plugin.plugin import AroundContext

logger = logging.getLogger("chancy.worker")

#: Seconds that the hooks have to leave after a run, or to give up entering if it is interrupted.
LEAVE_S = 30.0
#: Seconds after which hooks that do not even end when they are cancelled are left behind.
_SWALLOWED_S = 1.0


class HookedRun:
    """One run in the middle of the hooks, in a task and a context of its own: what the hooks set
    there is seen by the job, and by no other.

    :param hooks: in the order in which they are entered.
    :param leave_s: see `LEAVE_S`.
    """

    def __init__(
        self,
        claim: Claim,
        hooks: Sequence[Around],
        executor: Executor,
        leave_s: float = LEAVE_S,
    ) -> None:
        self._claim = claim
        self._hooks = hooks
        self._executor = executor
        self._leave_s = leave_s
        self._stack = AsyncExitStack()
        self._job = JobContext(claim, DetachedHost(), stack=self._stack)
        self._entering = True
        self._given: Outcome | None = None
        self._end: asyncio.Future[Outcome] | None = None
        self._task: asyncio.Task[None] | None = None

    async def outcome(self) -> Outcome:
        """Enter the hooks, run the claim, leave them. Never raises, whatever they do."""
        loop = asyncio.get_running_loop()
        self._end = loop.create_future()
        self._task = loop.create_task(self._run(), name="chancy-around")
        self._task.add_done_callback(self._task_ended)
        try:
            return await self._end
        except asyncio.CancelledError:
            # The consumer is being torn down, and takes the job and its hooks along.
            self._task.cancel()
            await asyncio.wait([self._task], timeout=self._leave_s + _SWALLOWED_S)
            self._abandon()
            raise

    def interrupt(self, outcome: Outcome) -> bool:
        """As `Executor.interrupt`. While the hooks are being entered the job does not run at all;
        while they are being left it has ended."""
        if not self._entering:
            return self._executor.interrupt(self._claim, outcome)
        if self._given is None and self._task is not None:
            self._given = outcome
            self._task.cancel()
            asyncio.get_running_loop().call_later(self._leave_s, self._give_up, outcome)
        return True

    async def _run(self) -> None:
        CURRENT.set(self._job)
        error: BaseException | None = None
        try:
            for hook in self._hooks:
                await self._enter(hook(self._job))
            self._entering = False
            outcome = self._given or await self._executor.run(self._claim)
        except BaseException as raised:
            self._entering = False
            error = raised
            outcome = self._given or Raised(Failure.of(raised))
        outcome = await self._leave(outcome, error)
        if self._end is not None and not self._end.done():
            self._end.set_result(outcome)

    async def _enter(self, surrounding: AroundContext) -> None:
        if isinstance(surrounding, AbstractAsyncContextManager):
            await self._stack.enter_async_context(surrounding)
        else:
            self._stack.enter_context(surrounding)

    async def _leave(self, outcome: Outcome, error: BaseException | None) -> Outcome:
        """Close what was opened. An error there is the job's unless it has one already."""
        self._job.outcome = outcome
        late = TimeoutError(f"the `around` hooks did not leave within {self._leave_s:g} s")
        limit = asyncio.timeout(self._leave_s)
        timer = asyncio.get_running_loop().call_later(
            self._leave_s + _SWALLOWED_S, self._give_up, _blamed(outcome, late)
        )
        try:
            async with limit:
                trace = None if error is None else error.__traceback__
                await self._stack.__aexit__(type(error) if error else None, error, trace)
            return outcome
        except BaseException as raised:
            failed = late if limit.expired() else raised
        finally:
            timer.cancel()
        logger.error(
            "around_failed job=%s func=%s error=%r",
            self._claim.id,
            self._claim.func,
            failed,
            exc_info=failed,
        )
        return _blamed(outcome, failed)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """One that is cancelled before its first step never gets to `_run`."""
        if self._end is not None and not self._end.done():
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self._end.set_result(self._given or Raised(Failure.of(error or RuntimeError())))

    def _give_up(self, outcome: Outcome) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(outcome)
            self._abandon()

    def _abandon(self) -> None:
        if self._task is None or self._task.done():
            return
        self._task.cancel()
        # asyncio.run waits without limit for every task that it knows.
        _unregister_task(self._task)
        logger.error(
            "around_abandoned job=%s func=%s seconds=%g",
            self._claim.id,
            self._claim.func,
            self._leave_s,
        )


def _blamed(outcome: Outcome, error: BaseException) -> Outcome:
    if isinstance(outcome, Returned):
        return Raised(Failure.of(error), outcome.elapsed_s)
    return outcome


class AroundHooks:
    """An executor with hooks about each run; for a runner it is one like any other.

    :param hooks: in the order in which they are entered.
    """

    def __init__(
        self, executor: Executor, hooks: Sequence[Around], leave_s: float = LEAVE_S
    ) -> None:
        self._executor = executor
        self._hooks = hooks
        self._leave_s = leave_s
        self._runs: dict[tuple[UUID, UUID], HookedRun] = {}

    @property
    def slots(self) -> int:
        return self._executor.slots

    @property
    def broken(self) -> str | None:
        return self._executor.broken

    async def start(self) -> None:
        await self._executor.start()

    async def run(self, claim: Claim) -> Outcome:
        run = HookedRun(claim, self._hooks, self._executor, self._leave_s)
        self._runs[claim.id, claim.lease] = run
        try:
            return await run.outcome()
        finally:
            del self._runs[claim.id, claim.lease]

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        run = self._runs.get((claim.id, claim.lease))
        return run is not None and run.interrupt(outcome)

    async def stop(self) -> None:
        await self._executor.stop()

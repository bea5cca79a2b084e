"""Runs a claim inside the `around` hooks of the plugins, as middleware."""

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

#: Seconds that the hooks have to exit after a run, or to stop entering when it is interrupted.
LEAVE_S = 30.0
#: Seconds after which hooks that swallow their cancellation are abandoned.
_SWALLOWED_S = 1.0


class HookedRun:
    """One run inside the hooks, in its own task and context: context variables that the hooks set
    are visible to this job only.

    :param hooks: the hooks, in the order in which they are entered.
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
        self._interruption: Outcome | None = None
        self._result: asyncio.Future[Outcome] | None = None
        self._task: asyncio.Task[None] | None = None

    async def outcome(self) -> Outcome:
        """Enter the hooks, run the claim, exit the hooks. Never raises, whatever the hooks do."""
        loop = asyncio.get_running_loop()
        self._result = loop.create_future()
        self._task = loop.create_task(self._run(), name="chancy-around")
        self._task.add_done_callback(self._task_ended)
        try:
            return await self._result
        except asyncio.CancelledError:
            # The consumer is being torn down, together with the job and its hooks.
            self._task.cancel()
            await asyncio.wait([self._task], timeout=self._leave_s + _SWALLOWED_S)
            self._abandon()
            raise

    def interrupt(self, outcome: Outcome) -> bool:
        """As `Executor.interrupt`. While the hooks are being entered, the job does not run at all;
        while they are being exited, it has already ended."""
        if not self._entering:
            return self._executor.interrupt(self._claim, outcome)
        if self._interruption is None and self._task is not None:
            self._interruption = outcome
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
            outcome = self._interruption or await self._executor.run(self._claim)
        except BaseException as raised:
            self._entering = False
            error = raised
            outcome = self._interruption or Raised(Failure.of(raised))
        outcome = await self._exit(outcome, error)
        if self._result is not None and not self._result.done():
            self._result.set_result(outcome)

    async def _enter(self, context: AroundContext) -> None:
        if isinstance(context, AbstractAsyncContextManager):
            await self._stack.enter_async_context(context)
        else:
            self._stack.enter_context(context)

    async def _exit(self, outcome: Outcome, error: BaseException | None) -> Outcome:
        """Exit the hooks. An error counts as the job's, unless the job has failed already."""
        self._job.outcome = outcome
        late = TimeoutError(f"the `around` hooks did not exit within {self._leave_s:g} s")
        limit = asyncio.timeout(self._leave_s)
        timer = asyncio.get_running_loop().call_later(
            self._leave_s + _SWALLOWED_S, self._give_up, _failed_by(outcome, late)
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
        return _failed_by(outcome, failed)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Set the result of a task that was cancelled before its first step, which never runs."""
        if self._result is not None and not self._result.done():
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            self._result.set_result(
                self._interruption or Raised(Failure.of(error or RuntimeError()))
            )

    def _give_up(self, outcome: Outcome) -> None:
        if self._result is not None and not self._result.done():
            self._result.set_result(outcome)
            self._abandon()

    def _abandon(self) -> None:
        if self._task is None or self._task.done():
            return
        self._task.cancel()
        # asyncio.run waits without limit for every registered task.
        _unregister_task(self._task)
        logger.error(
            "around_abandoned job=%s func=%s seconds=%g",
            self._claim.id,
            self._claim.func,
            self._leave_s,
        )


def _failed_by(outcome: Outcome, error: BaseException) -> Outcome:
    if isinstance(outcome, Returned):
        return Raised(Failure.of(error), outcome.elapsed_s)
    return outcome


class AroundHooks:
    """An executor that wraps each run of another executor in hooks.

    :param hooks: the hooks, in the order in which they are entered.
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

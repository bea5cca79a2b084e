"""Runs a claim inside the `around` hooks of the plugins, as middleware."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from types import TracebackType
from typing import Any
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Outcome, Raised
from chancy.clock import is_being_cancelled
from chancy.containment import Containment, abandon, refuse
from chancy.context.context import CURRENT, JobContext
from chancy.context.host import DetachedHost
from chancy.executors.base import Executor, WrappingExecutor
from chancy.plugin.hooks import AroundHook
from chancy.plugin.plugin import AroundContext
from chancy.worker.inline_run import failed_by, is_inline, run_inline

logger = logging.getLogger("chancy.worker")

#: Seconds that the hooks have to be entered, to exit after a run, and to stop entering when it is
#: interrupted.
LEAVE_S = 30.0
#: Seconds after which hooks that swallow their cancellation are abandoned.
_SWALLOWED_S = 1.0


class HookedRun:
    """One run inside the hooks, in its own task and context: context variables that the hooks set
    are visible to this job only.

    :param hooks: the hooks, in the order in which they are entered.
    :param leave_s: see `LEAVE_S`.
    :param job: the context of the job, with its stack; None makes one.
    :param ended: the outcome of a claim that has run, whose stack is to be closed.
    :param plain_errors: see `chancy.executors.base.AttemptCallbacks`.
    """

    def __init__(
        self,
        claim: Claim,
        hooks: Sequence[AroundHook],
        executor: Executor,
        leave_s: float,
        job: JobContext | None = None,
        *,
        ended: Outcome | None = None,
        plain_errors: bool = True,
    ) -> None:
        self._claim = claim
        self._hooks = hooks
        self._executor = executor
        self._leave_s = leave_s
        self._ended = ended
        self._plain_errors = plain_errors
        self._job = job or JobContext(claim, DetachedHost(), stacked=True)
        # The hooks, and inside them the callbacks on the stack of the job.
        self._stack = AsyncExitStack()
        self._entering = True
        self._interruption: Outcome | None = None
        self._result: asyncio.Future[Outcome] | None = None
        self._task: asyncio.Task[None] | None = None
        # The hook that is being entered or exited; the one at which the time was up; and the last
        # error that was logged.
        self._at: Containment | None = None
        self._late_at: Containment | None = None
        self._logged: BaseException | None = None
        self._abandoned = False

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
            await self._enter()
            self._claim = self._job.carrying(self._claim)
            self._entering = False
            outcome = self._ended or self._interruption or await self._executor.run(self._claim)
        except BaseException as raised:
            self._entering = False
            error = raised
            outcome = self._interruption or Raised(Failure.of(raised), error=raised)
            if self._interruption is not None and self._task is not None:
                self._task.uncancel()
        outcome = await self._exit(outcome, error)
        if self._result is not None and not self._result.done():
            self._result.set_result(outcome)

    async def _enter(self) -> None:
        late = TimeoutError(f"the `around` hooks were not entered within {self._leave_s:g} s")
        async with self._bounded(late, Raised(Failure.of(late))):
            for contained, around in self._hooks:
                self._at = contained
                try:
                    context = _EnteredHook(self, contained, around(self._job))
                    await self._stack.enter_async_context(context)
                except BaseException as error:
                    self.log(contained, error)
                    raise
            self._stack.push_async_exit(self._job.stack)

    async def _exit(self, outcome: Outcome, error: BaseException | None) -> Outcome:
        """Exit the hooks. An error counts as the job's, unless the job has failed already."""
        self._job.outcome = outcome
        late = TimeoutError(f"the `around` hooks did not exit within {self._leave_s:g} s")
        try:
            async with self._bounded(late, failed_by(outcome, late)):
                trace = None if error is None else error.__traceback__
                await self._stack.__aexit__(type(error) if error else None, error, trace)
            return outcome
        except BaseException as raised:
            if raised is not self._logged and not self._abandoned:
                # Raised by a callback that the job has put on its stack.
                plain = self._plain_errors
                logger.error(
                    "job_cleanup_failed job=%s func=%s error=%s",
                    self._claim.id,
                    self._claim.func,
                    repr(raised) if plain else type(raised).__name__,
                    exc_info=raised if plain else None,
                )
            return failed_by(outcome, raised)

    @asynccontextmanager
    async def _bounded(self, late: TimeoutError, outcome: Outcome) -> AsyncGenerator[None]:
        """Limit the time of a block. If it swallows its cancellation, the run ends without it."""
        loop = asyncio.get_running_loop()
        # Just before the timeout cancels the hook: the cancellation continues to the next hooks.
        noting = loop.call_later(self._leave_s, self._note_late)
        timer = loop.call_later(self._leave_s + _SWALLOWED_S, self._give_up, outcome)
        limit = asyncio.timeout(self._leave_s)
        try:
            async with limit:
                yield
        except BaseException:
            if not limit.expired():
                raise
        finally:
            noting.cancel()
            timer.cancel()
        # Also if the hook has swallowed its cancellation: the job must not run after its outcome.
        if limit.expired():
            if self._late_at is not None:
                self.log(self._late_at, late)
            raise late

    def _note_late(self) -> None:
        self._late_at = self._at

    def leaving(self, contained: Containment) -> None:
        """Note the hook that is being exited."""
        self._at = contained

    def log(self, contained: Containment, error: BaseException) -> None:
        """Log the failure of a hook. A cancellation of the run is none."""
        if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
            return
        if not self._abandoned:
            self._logged = error
            contained.failed(error, self._claim.id)

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
        abandon(self._task)
        if self._at is not None:
            self.log(self._at, TimeoutError("it ignored its cancellation"))
        self._abandoned = True


class _EnteredHook:
    """The context manager of a hook, sync or async, with its failures logged."""

    def __init__(self, run: HookedRun, contained: Containment, context: AroundContext) -> None:
        if not isinstance(context, AbstractAsyncContextManager | AbstractContextManager):
            refuse(context, "around()", "a context manager: is contextlib.contextmanager missing?")
        self._run = run
        self._contained = contained
        self._context = context

    async def __aenter__(self) -> object:
        if isinstance(self._context, AbstractAsyncContextManager):
            return await self._context.__aenter__()
        return self._context.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self._run.leaving(self._contained)
        try:
            if isinstance(self._context, AbstractAsyncContextManager):
                return await self._context.__aexit__(kind, error, trace)
            return self._context.__exit__(kind, error, trace)
        except BaseException as raised:
            if raised is not error:
                self._run.log(self._contained, raised)
            raise


class AroundHooks(WrappingExecutor):
    """An executor that wraps each run of another executor in hooks.

    :param hooks: the hooks, in the order in which they are entered.
    :param plain_errors: see `chancy.executors.base.AttemptCallbacks`.
    """

    def __init__(
        self,
        executor: Executor,
        hooks: Sequence[AroundHook],
        leave_s: float | None = None,
        *,
        plain_errors: bool = True,
    ) -> None:
        super().__init__(executor)
        self._hooks = hooks
        self._leave_s = LEAVE_S if leave_s is None else leave_s
        self._plain_errors = plain_errors
        self._inline = all(map(is_inline, hooks))
        self._runs: dict[tuple[UUID, UUID], HookedRun] = {}
        # Running claims with the meta that hooks have set, by the identity of the original claim.
        self._carrying: dict[int, Claim] = {}

    async def run(self, claim: Claim) -> Outcome:
        if self._inline:
            return await self._run_inline(claim)
        hooked = HookedRun(
            claim,
            self._hooks,
            self._executor,
            self._leave_s,
            plain_errors=self._plain_errors,
        )
        return await self._outcome(hooked, claim)

    async def _run_inline(self, claim: Claim) -> Outcome:
        job = JobContext(claim, DetachedHost(), stacked=True)

        async def close(outcome: Outcome) -> Outcome:
            # Cleanup may await, so it gets a task and a time limit, as async hooks do.
            closing = HookedRun(
                claim,
                (),
                self._executor,
                self._leave_s,
                job,
                ended=outcome,
                plain_errors=self._plain_errors,
            )
            return await self._outcome(closing, claim)

        def run() -> Coroutine[Any, Any, Outcome]:
            carrying = job.carrying(claim)
            if carrying is not claim:
                self._carrying[id(claim)] = carrying
            return self._executor.run(carrying)

        try:
            return await run_inline(claim, job, self._hooks, run, close)
        finally:
            self._carrying.pop(id(claim), None)

    async def _outcome(self, run: HookedRun, claim: Claim) -> Outcome:
        self._runs[claim.id, claim.lease] = run
        try:
            return await run.outcome()
        finally:
            del self._runs[claim.id, claim.lease]

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        run = self._runs.get((claim.id, claim.lease))
        if run is None:
            running = self._carrying.get(id(claim), claim)
            return self._inline and self._executor.interrupt(running, outcome)
        return run.interrupt(outcome)

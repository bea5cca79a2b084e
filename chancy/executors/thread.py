"""Runs jobs in threads of the worker."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextvars import Context, copy_context
from functools import partial
from time import perf_counter
from uuid import UUID

from chancy.attempt import Claim, Outcome
from chancy.executors.base import FindFunction, Report, no_report
from chancy.executors.invocation import Callee, Stage, callee, raised
from chancy.executors.pool import Errand, ThreadPool
from chancy.limits import NO_LIMITS, Limits
from chancy.options import ThreadOptions

logger = logging.getLogger(__name__)

_Run = tuple[UUID, UUID]


class ThreadExecutor:
    """Plain functions run in a thread, coroutine functions in a loop of that thread.

    Each job has a copy of the consumer's context.

    :param max_payload: bytes that an encoded result may have.
    :param limits: of claims that have none of their own.
    :param report: takes the progress of running jobs.
    """

    def __init__(
        self,
        *,
        concurrency: int,
        find: FindFunction,
        max_payload: int,
        options: ThreadOptions | None = None,
        limits: Limits = NO_LIMITS,
        report: Report = no_report,
    ) -> None:
        self._concurrency = concurrency
        self._find = find
        self._max_payload = max_payload
        self._options = options or ThreadOptions()
        self._limits = limits
        self._report = report
        self._callees: dict[str, Callee] = {}
        self._errands: dict[_Run, Errand[Outcome]] = {}
        self._stuck = 0
        self._stages = threading.local()
        self._threads = ThreadPool(concurrency, "chancy-thread", self._leave_stage)

    @property
    def slots(self) -> int:
        """Threads less those that are taken by interrupted jobs until these return."""
        return self._concurrency - self._stuck

    @property
    def broken(self) -> str | None:
        return None

    async def start(self) -> None:
        """Threads are started when they are needed."""

    async def run(self, claim: Claim) -> Outcome:
        try:
            called = self._callees.get(claim.func)
            if called is None:
                called = self._callees[claim.func] = callee(claim.func, self._find)
        except BaseException as error:
            return raised(error, perf_counter())
        run = claim.id, claim.lease
        call = partial(self._perform, called, claim.arguments, copy_context())
        errand = self._errands[run] = self._threads.submit(call)
        try:
            return await errand.future
        except asyncio.CancelledError:
            self._let_go(claim, errand)
            raise
        except Exception as error:
            return raised(error, perf_counter())
        finally:
            del self._errands[run]

    def _perform(self, called: Callee, arguments: str | None, context: Context) -> Outcome:
        stage: Stage | None = getattr(self._stages, "stage", None)
        if stage is None:
            stage = self._stages.stage = Stage(self._max_payload)
        return stage.run(called, arguments, context)

    def _leave_stage(self) -> None:
        stage: Stage | None = getattr(self._stages, "stage", None)
        if stage is not None:
            stage.close()

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        errand = self._errands.get((claim.id, claim.lease))
        if errand is None or errand.future.done():
            return False
        errand.future.set_result(outcome)
        return self._let_go(claim, errand)

    def _let_go(self, claim: Claim, errand: Errand[Outcome]) -> bool:
        """Whether the errand had not begun; otherwise its thread is taken until it returns."""
        if errand.withdraw():
            return True
        self._stuck += 1
        errand.late = self._unstuck
        logger.warning(
            "job %s (%s) runs in a thread, which cannot be stopped: its slot is taken until it "
            "returns (%d of %d are), and what it returns is dropped",
            claim.id,
            claim.func,
            self._stuck,
            self._concurrency,
        )
        return False

    def _unstuck(self) -> None:
        self._stuck -= 1

    async def stop(self) -> None:
        """End the threads. One that is stuck is left behind and keeps nothing from exiting."""
        await self._threads.stop()

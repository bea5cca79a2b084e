"""Runs plain functions of an async queue, in threads."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextvars import Context
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.context.context import JobContext
from chancy.executors.invocation import Callee, call_error, raised, returned
from chancy.executors.thread.pool import ThreadPool
from chancy.executors.thread.run import ThreadRun

logger = logging.getLogger("chancy.executors")


class PlainFunctions:
    """Calls plain functions in at most ``threads`` threads.

    :param max_payload: maximum size of an encoded result in bytes.
    """

    def __init__(self, threads: int, max_payload: int) -> None:
        self._max_payload = max_payload
        self._threads = ThreadPool(threads, "chancy-async")
        self._runs: dict[tuple[UUID, UUID], ThreadRun] = {}

    async def run(
        self,
        claim: Claim,
        called: Callee,
        arguments: dict[str, Any],
        job: JobContext,
        context: Context,
    ) -> Outcome | Awaitable[Any]:
        """Call a function. If it returns an awaitable, the caller awaits that in the loop."""
        began = perf_counter()
        run = self._runs[claim.id, claim.lease] = ThreadRun(claim, job, _left)
        call = partial(self._call, called, arguments, context)
        try:
            return await run.result(self._threads.submit(call))
        except Exception as error:
            return raised(error, began)
        finally:
            del self._runs[claim.id, claim.lease]

    def _call(
        self, called: Callee, arguments: dict[str, Any], context: Context
    ) -> Outcome | Awaitable[Any]:
        began = perf_counter()
        try:
            value = context.run(called.function, **arguments)
        except BaseException as error:
            return raised(call_error(called, arguments, error), began)
        if isinstance(value, Awaitable):
            return value
        return returned(called, value, self._max_payload, began)

    def interrupt(self, run: tuple[UUID, UUID], outcome: Outcome) -> bool:
        """Interrupt a function. Returns whether it can be stopped: only before it has started."""
        thread_run = self._runs.get(run)
        return thread_run is not None and thread_run.interrupt(outcome)

    async def stop(self) -> None:
        """Stop the threads. A stuck thread is left behind."""
        await self._threads.stop()


def _left(run: ThreadRun, ends_soon: bool) -> None:
    logger.warning(
        "job %s (%s) is a plain function in a thread, which cannot be stopped: it occupies its "
        "thread until it returns, and its result is dropped",
        run.claim.id,
        run.claim.func,
    )

"""Plain functions of an async queue: they run in threads beside its loop."""

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

    :param max_payload: bytes that an encoded result may have.
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
        """Call one. An awaitable that it gives is for the loop."""
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
        """Whether the function can be stopped: only one that has not begun."""
        threaded = self._runs.get(run)
        return threaded is not None and threaded.interrupt(outcome)

    async def stop(self) -> None:
        """End the threads. One that is stuck is left behind."""
        await self._threads.stop()


def _left(run: ThreadRun, ends_soon: bool) -> None:
    logger.warning(
        "job %s (%s) is a plain function in a thread, which cannot be stopped: its thread is "
        "taken until it returns, and what it returns is dropped",
        run.claim.id,
        run.claim.func,
    )

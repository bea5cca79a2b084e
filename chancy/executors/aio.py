"""Runs jobs in the worker's event loop.

A coroutine needs a task of its own: `asyncio.timeout`, task groups and cancel scopes keep hold of
the task they began in, and a job must be stoppable without stopping the consumer that awaits it.
But a task per job costs 4.2 µs, more than all the rest. So the first step of a coroutine is made
in place, with a waiting task (a `Host`) standing in as the current one (0.7 µs; an eager task of
Python 3.12 takes the same): a job that never waits ends there, and the host is used again; one
that waits is taken over by the host for good.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.tasks import _enter_task, _leave_task, _unregister_task
from collections.abc import Awaitable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from time import perf_counter
from types import CoroutineType
from typing import Any, cast
from uuid import UUID

from chancy.attempt import Claim, Outcome
from chancy.executors.base import FindFunction, Report, no_report
from chancy.executors.host import Host
from chancy.executors.invocation import (
    Callee,
    arguments_of,
    awaited,
    call_error,
    callee,
    raised,
    returned,
)
from chancy.executors.pool import Errand, ThreadPool
from chancy.limits import NO_LIMITS, Limits
from chancy.options import AsyncOptions

logger = logging.getLogger(__name__)

#: Threads for jobs that are plain functions, whatever the concurrency is.
MAX_THREADS = 64

_Run = tuple[UUID, UUID]


async def _ended(outcome: Outcome) -> Outcome:
    """The run of a job that ended before it began."""
    return outcome


class AsyncExecutor:
    """Coroutine functions run in the loop, plain functions in threads.

    Each job has a copy of the consumer's context. A task that a job starts and leaves behind goes
    on in the loop.

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
        options: AsyncOptions | None = None,
        limits: Limits = NO_LIMITS,
        report: Report = no_report,
    ) -> None:
        self._concurrency = concurrency
        self._find = find
        self._max_payload = max_payload
        self._options = options or AsyncOptions()
        self._limits = limits
        self._report = report
        self._callees: dict[str, Callee] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._spare: Host | None = None
        self._hosts: dict[_Run, Host] = {}
        self._errands: dict[_Run, Errand[Outcome | Awaitable[Any]]] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self._threads = ThreadPool(min(concurrency, MAX_THREADS), "chancy-async")

    @property
    def slots(self) -> int:
        return self._concurrency

    @property
    def broken(self) -> str | None:
        return None

    async def start(self) -> None:
        """Nothing is made before it is needed."""

    def run(self, claim: Claim) -> Coroutine[Any, Any, Outcome]:
        # Not a coroutine around another one: 0.15 µs less.
        began = perf_counter()
        try:
            called = self._callees.get(claim.func) or self._look_up(claim.func)
            arguments = arguments_of(claim.arguments)
        except BaseException as error:
            return _ended(raised(error, began))
        if called.coroutine:
            return self._run_coroutine(claim, called, arguments, copy_context(), began)
        return self._run_plain(claim, called, arguments, copy_context())

    def _find_loop(self) -> asyncio.AbstractEventLoop:
        self._loop = asyncio.get_running_loop()
        return self._loop

    def _look_up(self, path: str) -> Callee:
        called = self._callees[path] = callee(path, self._find)
        return called

    async def _run_coroutine(
        self,
        claim: Claim,
        called: Callee,
        arguments: dict[str, Any],
        context: Context,
        began: float,
    ) -> Outcome:
        # Asking for the running loop asks the system for the process id: 0.16 µs each time.
        loop = self._loop or self._find_loop()
        consumer = cast("asyncio.Task[Any]", asyncio.current_task(loop))
        host, self._spare = self._spare or Host(loop), None
        job: Any = None
        outcome: Outcome | None = None
        _leave_task(loop, consumer)
        _enter_task(loop, host.task)
        try:
            job = context.run(called.function, **arguments)
            if type(job) is not CoroutineType:
                job = awaited(job)
            host.begin(job, context)
        except BaseException as error:
            if job is None:
                outcome = raised(call_error(called, arguments, error), began)
            elif isinstance(error, StopIteration):
                outcome = returned(called.path, error.value, self._max_payload, began)
            else:
                outcome = raised(error, began)
        finally:
            _leave_task(loop, host.task)
            _enter_task(loop, consumer)
        if outcome is None:
            host.wake()
            return await self._follow(claim, called.path, host, began)
        if host.spoilt or self._spare is not None:
            host.wake()
        else:
            self._spare = host
        return outcome

    async def _follow(self, claim: Claim, path: str, host: Host, began: float) -> Outcome:
        """Wait for a job that its host runs on."""
        run = claim.id, claim.lease
        self._hosts[run] = host
        try:
            value, error = await host.end
        except asyncio.CancelledError:
            # The consumer is being torn down, and the job goes first.
            host.task.cancel()
            await asyncio.wait([host.task], timeout=self._options.grace_s)
            if not host.task.done():
                self._abandon(claim, host)
            raise
        finally:
            del self._hosts[run]
        if host.given is not None:
            if error is not None and not isinstance(error, asyncio.CancelledError):
                logger.warning(
                    "job %s (%s) raised while it was being stopped",
                    claim.id,
                    path,
                    exc_info=error,
                )
            return host.given
        if error is not None:
            return raised(error, began)
        return returned(path, value, self._max_payload, began)

    def _abandon(self, claim: Claim, host: Host) -> None:
        if host.task.done():
            return
        logger.error(
            "job %s (%s) did not end within %g s of being cancelled: it is abandoned, "
            "and goes on until it returns by itself",
            claim.id,
            claim.func,
            self._options.grace_s,
        )
        self._abandoned.add(host.task)
        host.task.add_done_callback(self._abandoned.discard)
        host.give_up()

    async def _run_plain(
        self, claim: Claim, called: Callee, arguments: dict[str, Any], context: Context
    ) -> Outcome:
        run = claim.id, claim.lease
        began = perf_counter()
        call = partial(self._call, called, arguments, context)
        errand = self._errands[run] = self._threads.submit(call)
        try:
            value = await errand.future
        except asyncio.CancelledError:
            errand.withdraw()
            raise
        except Exception as error:
            return raised(error, began)
        finally:
            del self._errands[run]
        if isinstance(value, Awaitable):
            called = Callee(called.path, awaited, True)
            return await self._run_coroutine(claim, called, {"value": value}, context, began)
        return value

    def _call(
        self, called: Callee, arguments: dict[str, Any], context: Context
    ) -> Outcome | Awaitable[Any]:
        """Call a plain function. In a thread; its awaitable, if it gives one, is the loop's."""
        began = perf_counter()
        try:
            value = context.run(called.function, **arguments)
        except BaseException as error:
            return raised(call_error(called, arguments, error), began)
        if isinstance(value, Awaitable):
            return value
        return returned(called.path, value, self._max_payload, began)

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        run = claim.id, claim.lease
        if host := self._hosts.get(run):
            return self._interrupt_host(claim, host, outcome)
        errand = self._errands.get(run)
        if errand is None or errand.future.done():
            return False
        errand.future.set_result(outcome)
        if errand.withdraw():
            return True
        logger.warning(
            "job %s (%s) is a plain function in a thread, which cannot be stopped: its thread is "
            "taken until it returns, and what it returns is dropped",
            claim.id,
            claim.func,
        )
        return False

    def _interrupt_host(self, claim: Claim, host: Host, outcome: Outcome) -> bool:
        if host.end.done():
            return False
        if host.given is None:
            host.given = outcome
            asyncio.get_running_loop().call_later(self._options.grace_s, self._abandon, claim, host)
        host.task.cancel()
        return True

    async def stop(self) -> None:
        """End the threads and what was abandoned."""
        await self._threads.stop()
        if self._spare is not None:
            self._spare.wake()
            await self._spare.task
            self._spare = None
        if self._abandoned:
            for task in self._abandoned:
                task.cancel()
            _, alive = await asyncio.wait(set(self._abandoned), timeout=1.0)
            for task in alive:
                # asyncio.run waits without limit for every task that it knows.
                _unregister_task(task)

"""Runs attempts for a sandbox, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from chancy.app.app import Chancy
from chancy.attempt.claim import Claim
from chancy.attempt.logs import log_settled
from chancy.attempt.outcome import Outcome, Raised, Returned, TimedOut
from chancy.attempt.settlement import Note
from chancy.clock import Clock
from chancy.containment import Containment
from chancy.context.context import Progress
from chancy.errors import ChancyError, LeaseLost
from chancy.executors.base import AttemptCallbacks, Executor
from chancy.executors.batches import BatchedExecutor
from chancy.executors.invocation import callee
from chancy.executors.setup import ExecutorSetup, make_executor
from chancy.job.limits import Limits, LimitType, decode_limits
from chancy.job.registry import Registry
from chancy.plugin.hooks import AroundHook
from chancy.queue.executor_kind import executor_kind
from chancy.queue.executor_options import AsyncOptions, ExecutorOptions, ThreadOptions
from chancy.queue.queue import Queue
from chancy.testing.memory import MemoryBroker
from chancy.testing.threads import placed
from chancy.worker.meta_writer import MetaWriter
from chancy.worker.middleware import AroundHooks
from chancy.worker.payload_executor import PayloadExecutor


class InProcessRunner:
    """Runs attempts by the executor that their queue declares, as far as one process can.

    A coroutine function runs in this event loop, whatever the executor. A plain function of a
    ``process`` queue runs in a thread, which cannot be stopped: when its time limit is over,
    `current_job().cancelled` is set, and the attempt has timed out once the function returns. Its
    memory limit does not apply.
    """

    def __init__(self, app: Chancy, broker: MemoryBroker, clock: Clock) -> None:
        self._app = app
        self._broker = broker
        self._meta = MetaWriter(broker, clock)

    async def run(self, claim: Claim, queue: Queue) -> None:
        """Run an attempt, and settle it."""
        name = self._executor_name(claim, queue)
        limits = Limits.of(queue.limits)
        if queue.executor == "process":
            claim, limits = _without_memory(claim), Limits(limits.time_s)
        setup = ExecutorSetup(
            concurrency=1,
            find=self._find,
            max_payload=self._app.max_payload,
            options=_options(name, queue),
            limits=limits,
            callbacks=AttemptCallbacks(report=self._report, store=self._store),
        )
        outcome = await self._run(make_executor(name, setup), claim, queue)
        if queue.executor == "process":
            outcome = _in_time(outcome, decode_limits(claim.limits).over(limits).time_s)
        [settlement] = self._meta.with_progress([self._app.hooks.judge(claim, outcome)])
        log_settled(claim, outcome, settlement)
        stale = await self._broker.settle([settlement])
        if (settled := self._app.hooks.after) is not None:
            settled(*(([], [settlement]) if stale else ([settlement], [])))

    def _find(self, path: str) -> Callable[..., Any]:
        return placed(self._app.registry.find(path))

    def _executor_name(self, claim: Claim, queue: Queue) -> str:
        try:
            coroutine = callee(claim.func, self._app.registry.find).coroutine
        except ChancyError:  # which the executor makes the outcome
            return "async"
        return "async" if coroutine or queue.executor == "async" else "thread"

    async def _run(self, executor_: Executor, claim: Claim, queue: Queue) -> Outcome:
        around = self._app.hooks.around
        if queue.executor == "process":
            around += tuple(map(self._in_child, self._app.hooks.around_in_child))
        batched = BatchedExecutor(executor_, self._find, self._app.max_payload)
        surrounded: Executor = AroundHooks(batched, around) if around else batched
        if self._app.hooks.payloads is not None:
            surrounded = PayloadExecutor(surrounded, self._app.hooks.payloads)
        await surrounded.start()
        try:
            return await surrounded.run(claim)
        finally:
            await surrounded.stop()

    def _in_child(self, path: str) -> AroundHook:
        return AroundHook(Containment(path, "around_in_child"), Registry(allow=("*",)).find(path))

    def _report(self, claim: Claim, progress: Progress) -> None:
        self._meta.report(claim, progress, lambda *_: None)

    async def _store(self, claim: Claim, meta: str) -> None:
        if self._app.hooks.payloads is not None:
            meta = self._app.hooks.payloads.meta(claim.func, meta)
        if await self._broker.update_meta([Note(claim.id, claim.lease, meta)]):
            raise LeaseLost(f"job {claim.id} has ended: its checkpoint is not stored")


def _options(name: str, queue: Queue) -> ExecutorOptions:
    if name == queue.executor:
        return queue.options or executor_kind(name).options()
    return ThreadOptions(cooperative=True) if name == "thread" else AsyncOptions()


def _in_time(outcome: Outcome, limit_s: float | None) -> Outcome:
    """The outcome of a process, which is stopped at its time limit whatever it does."""
    if (
        limit_s is None
        or not isinstance(outcome, Returned | Raised)
        or outcome.elapsed_s <= limit_s
    ):
        return outcome
    return TimedOut(limit_s, outcome.elapsed_s)


def _without_memory(claim: Claim) -> Claim:
    limits = decode_limits(claim.limits)
    if limits.memory_bytes is None:
        return claim
    time = None if limits.time_s is None else json.dumps({LimitType.TIME.value: limits.time_s})
    return claim._replace(limits=time)

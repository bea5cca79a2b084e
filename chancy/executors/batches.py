"""Combines jobs of functions that are declared with ``@job(batch=…)`` into single calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import islice
from time import perf_counter
from typing import Any, NamedTuple
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import Outcome, Raised, Released, Returned, Snoozed
from chancy.errors import InvalidResult, PayloadTooLarge
from chancy.executors.base import Executor, FindFunction, WrappingExecutor
from chancy.executors.imports import load, refused
from chancy.executors.items import Item, decode_other
from chancy.job.batching import Batching
from chancy.serialization.annotations import BATCHING
from chancy.serialization.codec import encode
from chancy.serialization.signature import Signature

_Key = tuple[UUID, UUID]


class _Member(NamedTuple):
    """A job of a batch, with the number of its items."""

    claim: Claim
    items: int
    outcome: asyncio.Future[Outcome]


class _Batch:
    """Jobs of one function whose other arguments are equal."""

    def __init__(self, parameter: str, rest: dict[str, Any]) -> None:
        self._parameter = parameter
        self._rest = rest
        self.members: list[_Member] = []
        self.items: list[Any] = []
        self.bytes = 0
        self.timer: asyncio.TimerHandle | None = None
        #: The claim of the call, once it has started.
        self.merged: Claim | None = None

    def remove(self, claim: Claim, outcome: Outcome) -> None:
        """End a member before the call."""
        start = 0
        for index, member in enumerate(self.members):
            if member.claim.id == claim.id:
                del self.members[index], self.items[start : start + member.items]
                if not member.outcome.done():
                    member.outcome.set_result(outcome)
                return
            start += member.items

    def merge(self) -> Claim:
        """The claim of one call for all members: that of the first one with all items."""
        text = json.dumps({**self._rest, self._parameter: self.items})
        self.merged = self.members[0].claim._replace(arguments=text)
        return self.merged


def split(
    outcome: Outcome, func: str, items: Sequence[int] | None, max_payload: int
) -> list[Outcome]:
    """The outcome of each job of a call of a batch function.

    :param items: how many items of the call each job has, in order; None: all are of one job.
    :param max_payload: the most bytes of the results of a job.
    """
    jobs = 1 if items is None else len(items)
    if not isinstance(outcome, Returned) or outcome.result is None:
        return [outcome] * jobs
    try:
        results: list[Item] = json.loads(outcome.result)
        counts = [len(results)] if items is None else items
        if len(results) == sum(counts):
            rest = iter(results)
            ended = outcome.elapsed_s, f"the results of {func}", max_payload
            return [_outcome(list(islice(rest, each)), *ended) for each in counts]
        why = (
            f"{func} returned {len(results):,} results for {sum(counts):,} items: "
            "return one for each item, or None"
        )
    except Exception:
        why = (
            f"{func} returned no results of a batch: the process that ran it has a version of its "
            "module that declares it without batch="
        )
    return [Raised(Failure.of(InvalidResult(why)), outcome.elapsed_s)] * jobs


def _outcome(results: list[Item], elapsed_s: float, what: str, max_payload: int) -> Outcome:
    """The outcome of one job: the first of its items that has no result, or their results."""
    for _, other in results:
        if other is not None:
            return decode_other(other, elapsed_s)
    values = [value for value, _ in results]
    if values == [None] * len(values):
        return Returned(None, elapsed_s)
    try:
        return Returned(encode(values, what=what, limit=max_payload), elapsed_s)
    except PayloadTooLarge as error:
        return Raised(Failure.of(error), elapsed_s)


class BatchedExecutor(WrappingExecutor):
    """Runs jobs of batch functions together, and all others alone.

    A call starts when its batch is full, when every slot of the executor is taken, or when the
    first of its jobs has waited for long enough. A job whose arguments are not valid, that has
    limits of its own, or that has crashed before, runs alone.

    :param max_payload: the most bytes of the arguments of a call, unless a single job has more.
    """

    def __init__(self, executor: Executor, find: FindFunction, max_payload: int) -> None:
        super().__init__(executor)
        self._find = find
        self._max_payload = max_payload
        self._declared: dict[str, tuple[Batching, Signature] | None] = {}
        self._gathering: dict[tuple[str, str], _Batch] = {}
        self._batches: dict[_Key, _Batch] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self, claim: Claim) -> Outcome:
        if claim.func not in self._declared:
            began = perf_counter()
            try:
                await load(claim.func, self._find)
                self._declare(claim.func)
            except BaseException as error:
                return refused(error, began)
        declared = self._declared[claim.func]
        if declared is None:
            return await self._executor.run(claim)
        return await self._join(claim, *declared)

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        """As `Executor.interrupt`, but a job that runs with others cannot be stopped alone: only
        `Released` and `Snoozed` stop it, together with them."""
        batch = self._batches.get((claim.id, claim.lease))
        if batch is None:
            return self._executor.interrupt(claim, outcome)
        if batch.merged is None:
            batch.remove(claim, outcome)
            return True
        alone = len(batch.members) == 1
        stoppable = alone or isinstance(outcome, Released | Snoozed)
        return stoppable and self._executor.interrupt(batch.merged, outcome)

    def release_waiting(self, outcome: Outcome) -> None:
        for key, batch in list(self._gathering.items()):
            for member in list(batch.members):
                batch.remove(member.claim, outcome)
            self._start(key, batch)  # which makes no call
        super().release_waiting(outcome)

    def _declare(self, func: str) -> None:
        function = self._find(func)
        batching: Batching | None = getattr(function, BATCHING, None)
        declared = None if batching is None else (batching, Signature.of(function, func))
        self._declared[func] = declared

    async def _join(self, claim: Claim, batching: Batching, signature: Signature) -> Outcome:
        """Wait for the outcome of the batch that the claim joins."""
        text = claim.arguments or "{}"
        try:
            text = signature.upgraded(text)
            signature.decode(text)
            rest: dict[str, Any] = json.loads(text)
        except Exception:
            return await self._executor.run(claim)  # which reports the error
        items: Any = rest.pop(batching.parameter, None)
        if not isinstance(items, list):
            outcome = await self._executor.run(claim)
            return split(outcome, claim.func, None, self._max_payload)[0]
        alone = bool(claim.crashes or claim.limits)
        key = (claim.func, str(claim.id) if alone else json.dumps(rest, sort_keys=True))
        batch = self._gathering.get(key)
        if batch is not None and (
            batch.bytes + len(text) > self._max_payload
            or len(batch.items) + len(items) > batching.size
        ):
            self._start(key, batch)
            batch = None
        if batch is None:
            batch = self._gathering[key] = _Batch(batching.parameter, rest)
            loop = asyncio.get_running_loop()
            batch.timer = loop.call_later(batching.within_s, self._start, key, batch)
        member = _Member(claim, len(items), asyncio.get_running_loop().create_future())
        batch.members.append(member)
        batch.items += items
        batch.bytes += len(text)
        own = claim.id, claim.lease
        self._batches[own] = batch
        if alone or len(batch.items) >= batching.size:
            self._start(key, batch)
        elif len(self._batches) >= self.slots:
            for other, gathered in list(self._gathering.items()):
                self._start(other, gathered)
        try:
            return await member.outcome
        finally:
            del self._batches[own]

    def _start(self, key: tuple[str, str], batch: _Batch) -> None:
        if self._gathering.get(key) is not batch:
            return
        del self._gathering[key]
        if batch.timer is not None:
            batch.timer.cancel()
        task = asyncio.get_running_loop().create_task(self._call(batch), name="chancy batch")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _call(self, batch: _Batch) -> None:
        """Run the jobs of a batch in one call, and set their outcomes."""
        if not batch.members:
            return
        outcome: Outcome = Released("the worker stopped before the batch ended")
        try:
            outcome = await self._executor.run(batch.merge())
        finally:
            func, items = batch.members[0].claim.func, [member.items for member in batch.members]
            outcomes = split(outcome, func, items, self._max_payload)
            for member, one in zip(batch.members, outcomes, strict=True):
                if not member.outcome.done():
                    member.outcome.set_result(one)

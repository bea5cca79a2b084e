"""Pushing jobs in small batches, each retried while its outcome is unknown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

from chancy.broker.values import PreparedJob
from chancy.clock import Backoff
from chancy.errors import BrokerError, BrokerUnavailable, DuplicateJob
from chancy.plugins.redis import records
from chancy.plugins.redis.transport.chunks import BATCH, MOVED, fit, take_back
from chancy.plugins.redis.transport.scripts import Value
from chancy.plugins.redis.transport.shard import ShardClient

#: Seconds for which a push is retried while the server is unavailable.
PATIENCE_S = 5.0

#: Length of the id at the start of the ORDER of a job.
_ID_BYTES = 16

T = TypeVar("T")
Outcome = TypeVar("Outcome")


class RedisPushes:
    """The pushes of this process."""

    def __init__(self, client: ShardClient) -> None:
        self._client = client

    async def push(self, jobs: Sequence[PreparedJob]) -> dict[UUID, UUID]:
        """See `Broker.push`.

        Jobs are stored in batches, each atomically: `BATCH` jobs, `MOVED` if they differ only in
        their arguments, fewer if they are large. If a later batch is refused, the jobs already
        stored are removed again, except those that a worker has claimed by then. Jobs with
        ``on_conflict="raise"`` are stored first: if one of the first batch conflicts, nothing was
        stored.
        """
        if not jobs:
            return {}
        again = False
        if len(jobs) == 1:
            try:
                if await self._push_one(jobs[0]):
                    return {}
            except BrokerUnavailable as error:
                if not error.retryable:
                    raise
                again = True
        return await _Push(self._client, jobs).run(again)

    async def _push_one(self, job: PreparedJob) -> bool:
        """The fast path for one plain job, which saves 6 µs. False if the full path is needed."""
        kind = None if self._client.settings.replicas else _kind(job)
        if kind is None:
            return False
        queue, priority, most = kind
        rest = records.pushed(job)[1]
        return bool(await self._client.run("push_one", job.id.bytes, priority, most, queue, rest))


class _Push:
    """One call of `RedisPushes.push`.

    A place is the index of a job in the call.
    """

    def __init__(self, client: ShardClient, jobs: Sequence[PreparedJob]) -> None:
        self._client = client
        self._jobs = jobs
        self._encoded = list(map(records.pushed, jobs))
        self._rests = [rest for _, rest in self._encoded]
        kind = _kind(jobs[0])
        alike = kind is not None and all(_kind(job) == kind for job in jobs)
        self._kind = kind if alike else None
        #: The queue position before the first job of the call; None: each batch gets its own.
        self._base: int | None = None
        self._stored: list[int] = []
        #: Ids that existed before the call.
        self._before: set[UUID] = set()
        self._found: dict[UUID, UUID] = {}

    async def run(self, again: bool) -> dict[UUID, UUID]:
        """Store the jobs.

        :param again: whether an earlier attempt has an unknown outcome.
        """
        places: Sequence[int] = range(len(self._jobs))
        most = BATCH if self._kind is None else MOVED
        try:
            if fit(self._rests, most) < len(places) and self._kind is None:
                places = await self._raising_first(places)
            while places:
                count = fit(self._of(self._rests, places[:most]), most)
                await _retrying(partial(self._send, places[:count]), again)
                places = places[count:]
        except (BrokerError, DuplicateJob) as error:
            if self._stored and not isinstance(error, BrokerUnavailable):
                await self._take_back()
            raise
        return self._found

    async def _raising_first(self, places: Sequence[int]) -> Sequence[int]:
        """The places in storage order: jobs that may raise `DuplicateJob` first.

        Queue positions still follow the order of the call.
        """
        raising = {
            at
            for at, job in enumerate(self._jobs)
            if job.unique is not None and job.unique.on_conflict == "raise"
        }
        if not raising:
            return places
        _check_within(self._jobs)
        name, count = f"{self._client.tag}:position", len(places)
        last: int = await _retrying(lambda _: self._client.command("INCRBY", name, count))
        self._base = last - count
        return [*sorted(raising), *(at for at in places if at not in raising)]

    async def _send(self, places: Sequence[int], again: bool) -> None:
        """Store one batch."""
        if self._kind is not None and not again and await self._send_alike(places, self._kind):
            self._stored += places
            return
        batches = [places[at : at + BATCH] for at in range(0, len(places), BATCH)]
        while batches:
            batch = batches.pop(0)
            known = await self._send_each(batch, again)
            if known is None:
                middle = len(batch) // 2
                batches[:0] = [batch[:middle], batch[middle:]]
            elif known:
                new = [place for place in batch if self._jobs[place].id not in known]
                batches[:0] = [new] if new else []
            else:
                self._stored += batch

    async def _send_alike(self, places: Sequence[int], kind: tuple[str, int, int]) -> bool:
        """Store plain jobs of the same kind, the fast path of nearly all pushes.

        False if one of them already exists; nothing was stored then.
        """
        queue, priority, most = kind
        parts: list[bytes] = []
        for order, rest in self._of(self._encoded, places):
            parts += (order[:_ID_BYTES], rest)
        return bool(await self._client.run_lasting("push_plain", queue, priority, most, *parts))

    def _of(self, all_of: Sequence[T], places: Sequence[int]) -> Sequence[T]:
        if isinstance(places, range):
            return all_of[places.start : places.stop]
        return [all_of[at] for at in places]

    async def _send_each(self, places: Sequence[int], again: bool) -> frozenset[UUID] | None:
        """Store jobs, all or none.

        :returns: if nothing was stored: the ids that exist from an earlier attempt. These stay
            unchanged even if they have finished, as it is unknown which push stored them. None:
            these jobs replace too much for one script.
        """
        parts: list[Value] = [int(again), "" if self._base is None else self._base]
        for number, at in enumerate(places, 1):
            parts.append(number if self._base is None else at + 1)
            parts += self._encoded[at]
        answer = await self._client.run_lasting("push", *parts)
        if answer == b"large":
            return None
        if answer[0] == b"raise":
            raise DuplicateJob(UUID(bytes=answer[2]), self._jobs[places[answer[1]]].func)
        if answer[0] == b"known":
            known = frozenset(UUID(bytes=id) for id in answer[1])
            self._before |= known
            return known
        held, there = answer
        for number, holder in zip(held[::2], held[1::2], strict=True):
            self._found[self._jobs[places[number]].id] = UUID(bytes=holder)
        self._before.update(UUID(bytes=id) for id in there)
        return frozenset()

    async def _take_back(self) -> None:
        stored = (self._jobs[at].id for at in self._stored)
        others = self._before | self._found.keys()
        await take_back(self._client, [id.bytes for id in stored if id not in others])


async def _retrying(attempt: Callable[[bool], Awaitable[Outcome]], again: bool = False) -> Outcome:
    """Call `attempt`, and retry while the server is unavailable, for up to `PATIENCE_S`.

    :param attempt: receives whether an earlier attempt has an unknown outcome.
    """
    backoff, give_up_at = Backoff(base_s=0.02), time.monotonic() + PATIENCE_S
    while True:
        try:
            return await attempt(again)
        except BrokerError as error:
            if not again and not isinstance(error, BrokerUnavailable):
                raise
            pause = backoff.next_until(give_up_at)
            if pause is None or not error.retryable:
                raise
        again = True
        await asyncio.sleep(pause)


def _kind(job: PreparedJob) -> tuple[str, int, int] | None:
    """Queue, priority and most attempts, which jobs of a fast-path batch must share.

    None for a job that is scheduled or has a unique key.
    """
    if job.unique is not None or job.delay_s is not None or job.run_at is not None:
        return None
    return job.queue, job.priority, job.max_attempts


def _check_within(jobs: Sequence[PreparedJob]) -> None:
    """Check for duplicate keys within the call, before anything is stored.

    :raises DuplicateJob: a job with ``on_conflict="raise"`` has the key of an earlier one.
    """
    held: dict[bytes, UUID] = {}
    for job in jobs:
        if job.unique is not None:
            found = held.setdefault(job.unique.key, job.id)
            if found != job.id and job.unique.on_conflict == "raise":
                raise DuplicateJob(found, job.func)

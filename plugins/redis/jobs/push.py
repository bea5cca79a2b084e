"""Pushing: in scripts that hold up nobody, each repeated while its outcome is unknown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from chancy.broker.values import PreparedJob
from chancy.clock import Backoff
from chancy.errors import BrokerError, BrokerUnavailable, DuplicateJob
from chancy.plugins.redis import records
from chancy.plugins.redis.transport.chunks import BATCH, MOVED, fit, take_back
from chancy.plugins.redis.transport.scripts import Value
from chancy.plugins.redis.transport.shard_client import ShardClient

#: Seconds for which a push is repeated while the server is away.
PATIENCE_S = 5.0

#: With which the order of a job begins.
_ID_BYTES = 16

T = TypeVar("T")
Outcome = TypeVar("Outcome")


class RedisPushes:
    """The pushes of this process."""

    def __init__(self, link: ShardClient) -> None:
        self._link = link

    async def push(self, jobs: Sequence[PreparedJob]) -> dict[UUID, UUID]:
        """See `Broker.push`.

        Jobs are stored piece by piece, and each piece at one moment: `BATCH` jobs, `MOVED` if they
        differ in nothing but arguments, fewer where they are large. If a later piece is refused,
        what was stored is taken back, but for jobs that a worker has claimed by then. Jobs of
        which a key is held that must not be are looked at before all others: as long as they are
        of one piece, nothing was stored.
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
        return await _Push(self._link, jobs).run(again)

    async def _push_one(self, job: PreparedJob) -> bool:
        """Without what is there for many jobs, and for errors: 6 µs less. False: it is needed."""
        kind = None if self._link.settings.replicas else _kind(job)
        if kind is None:
            return False
        queue, priority, most = kind
        rest = records.pushed(job)[1]
        return bool(await self._link.run("push_one", job.id.bytes, priority, most, queue, rest))


class _Push:
    """One call.

    A place is where a job stands in the call.
    """

    def __init__(self, link: ShardClient, jobs: Sequence[PreparedJob]) -> None:
        self._link = link
        self._jobs = jobs
        self._encoded = list(map(records.pushed, jobs))
        self._rests = [rest for _, rest in self._encoded]
        kind = _kind(jobs[0])
        alike = kind is not None and all(_kind(job) == kind for job in jobs)
        self._kind = kind if alike else None
        #: The position behind which those of the call begin; None: each piece has its own.
        self._base: int | None = None
        self._stored: list[int] = []
        #: Jobs that were there before.
        self._before: set[UUID] = set()
        self._found: dict[UUID, UUID] = {}

    async def run(self, again: bool) -> dict[UUID, UUID]:
        """Store the jobs.

        :param again: whether it was tried before, and nobody knows what became of it.
        """
        places: Sequence[int] = range(len(self._jobs))
        most = BATCH if self._kind is None else MOVED
        try:
            if fit(self._rests, most) < len(places) and self._kind is None:
                places = await self._careful_first(places)
            while places:
                count = fit(self._of(self._rests, places[:most]), most)
                await self._store(places[:count], again)
                places = places[count:]
        except (BrokerError, DuplicateJob) as error:
            if self._stored and not isinstance(error, BrokerUnavailable):
                await self._take_back()
            raise
        return self._found

    async def _careful_first(self, places: Sequence[int]) -> Sequence[int]:
        """The places in the order in which the jobs are to be stored: those first that may have the
        call refused. They run in the order of the call all the same."""
        careful = {
            at
            for at, job in enumerate(self._jobs)
            if job.unique is not None and job.unique.on_conflict == "raise"
        }
        if not careful:
            return places
        _check_within(self._jobs)
        name, count = f"{self._link.tag}:position", len(places)
        last: int = await _patiently(lambda _: self._link.command("INCRBY", name, count))
        self._base = last - count
        return [*sorted(careful), *(at for at in places if at not in careful)]

    async def _store(self, places: Sequence[int], again: bool) -> None:
        """Store the jobs of a piece."""

        async def attempt(again: bool) -> None:
            await self._send(places, again)

        await _patiently(attempt, again)

    async def _send(self, places: Sequence[int], again: bool) -> None:
        if self._kind is not None and not again and await self._send_alike(places, self._kind):
            self._stored += places
            return
        for at in range(0, len(places), BATCH):
            some = places[at : at + BATCH]
            while some and (known := await self._send_each(some, again)):
                some = [one for one in some if self._jobs[one].id not in known]
            self._stored += some

    async def _send_alike(self, places: Sequence[int], kind: tuple[str, int, int]) -> bool:
        """Take the short way of jobs that are alike, and are only to be run, as nearly all are.

        False if one of them is there: nothing was stored then.
        """
        queue, priority, most = kind
        if len(places) == 1:
            [at] = places
            one = (self._jobs[at].id.bytes, priority, most, queue, self._rests[at])
            return bool(await self._link.run_lasting("push_one", *one))
        parts: list[bytes] = []
        for order, rest in self._of(self._encoded, places):
            parts += (order[:_ID_BYTES], rest)
        return bool(await self._link.run_lasting("push_plain", queue, priority, most, *parts))

    def _of(self, all_of: Sequence[T], places: Sequence[int]) -> Sequence[T]:
        if isinstance(places, range):
            return all_of[places.start : places.stop]
        return [all_of[at] for at in places]

    async def _send_each(self, places: Sequence[int], again: bool) -> frozenset[UUID]:
        """Store jobs, or none of them and give those that the server knows from an earlier attempt.
        These stay as they are, also if they have finished: nobody knows who has pushed them."""
        parts: list[Value] = [int(again), "" if self._base is None else self._base]
        for number, at in enumerate(places, 1):
            parts.append(number if self._base is None else at + 1)
            parts += self._encoded[at]
        answer = await self._link.run_lasting("push", *parts)
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
        mine = (self._jobs[at].id for at in self._stored)
        left = self._before | self._found.keys()
        await take_back(self._link, [id for id in mine if id not in left])


async def _patiently(attempt: Callable[[bool], Awaitable[Outcome]], again: bool = False) -> Outcome:
    """Try once, and while the server is away again, as `attempt` is told."""
    backoff, give_up_at = Backoff(base_s=0.02), time.monotonic() + PATIENCE_S
    while True:
        try:
            return await attempt(again)
        except BrokerError as error:
            if not again and not isinstance(error, BrokerUnavailable):
                raise
            pause = backoff.next_s()
            if not error.retryable or time.monotonic() + pause > give_up_at:
                raise
        again = True
        await asyncio.sleep(pause)


def _kind(job: PreparedJob) -> tuple[str, int, int] | None:
    """What jobs of one script must have in common; None for one that needs more than that."""
    if job.unique is not None or job.delay_s is not None or job.run_at is not None:
        return None
    return job.queue, job.priority, job.max_attempts


def _check_within(jobs: Sequence[PreparedJob]) -> None:
    """Find two of the call that must not have the same key, before anything is stored."""
    held: dict[bytes, UUID] = {}
    for job in jobs:
        if job.unique is not None:
            found = held.setdefault(job.unique.key, job.id)
            if found != job.id and job.unique.on_conflict == "raise":
                raise DuplicateJob(found, job.func)

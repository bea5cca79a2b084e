"""Pushing: one script for each thousand jobs, repeated while its outcome is unknown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from uuid import UUID

from chancy.broker import CHUNK, PreparedJob
from chancy.clock import Backoff
from chancy.errors import BrokerError, BrokerUnavailable, DuplicateJob
from chancy.plugins.redis import records
from chancy.plugins.redis.link import Link

#: Seconds for which a push is repeated while the server is away.
PATIENCE_S = 5.0


class Pushes:
    """The pushes of this process."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def push(self, jobs: Sequence[PreparedJob]) -> dict[UUID, UUID]:
        """See `Broker.push`.

        Up to `CHUNK` jobs are stored at one moment. More become visible chunk by chunk; what was
        stored is taken back if a later chunk is refused.
        """
        encoded = list(map(records.pushed, jobs))
        if len(jobs) <= CHUNK:
            return await self._store(jobs, encoded)
        _check_within(jobs)
        found: dict[UUID, UUID] = {}
        stored = 0
        try:
            for at in range(0, len(jobs), CHUNK):
                found |= await self._store(jobs[at : at + CHUNK], encoded[at : at + CHUNK])
                stored = at + CHUNK
        except (BrokerError, DuplicateJob) as error:
            if stored and not isinstance(error, BrokerUnavailable):
                await self._take_back([job for job in jobs[:stored] if job.id not in found])
            raise
        return found

    async def _store(
        self, jobs: Sequence[PreparedJob], encoded: Sequence[tuple[bytes, bytes]]
    ) -> dict[UUID, UUID]:
        if not jobs:
            return {}
        try:
            return await self._send(jobs, encoded)
        except BrokerUnavailable as error:
            return await self._persist(jobs, encoded, error)

    async def _send(
        self, jobs: Sequence[PreparedJob], encoded: Sequence[tuple[bytes, bytes]]
    ) -> dict[UUID, UUID]:
        if await self._send_plain(jobs, encoded):
            return {}
        answer = await self._link.run("push", *(part for pair in encoded for part in pair))
        if not answer:
            return {}
        if answer[0] == b"raise":
            raise DuplicateJob(UUID(bytes=answer[2]), jobs[answer[1]].func)
        places, holders = answer[::2], answer[1::2]
        return {
            jobs[place].id: UUID(bytes=holder)
            for place, holder in zip(places, holders, strict=True)
        }

    async def _send_plain(
        self, jobs: Sequence[PreparedJob], encoded: Sequence[tuple[bytes, bytes]]
    ) -> bool:
        """Take the short way of jobs that are alike, and are only to be run, as nearly all are.

        False if they are not, or one of them is there: nothing was stored then.
        """
        kind = _kind(jobs[0])
        if kind is None:
            return False
        queue, priority, most = kind
        if len(jobs) == 1:
            one = (jobs[0].id.bytes, priority, most, queue, encoded[0][1])
            return bool(await self._link.run("push_one", *one))
        if any(_kind(job) != kind for job in jobs):
            return False
        parts = [
            part
            for job, (_, rest) in zip(jobs, encoded, strict=True)
            for part in (job.id.bytes, rest)
        ]
        return bool(await self._link.run("push_plain", queue, priority, most, *parts))

    async def _persist(
        self,
        jobs: Sequence[PreparedJob],
        encoded: Sequence[tuple[bytes, bytes]],
        error: BrokerError,
    ) -> dict[UUID, UUID]:
        """Go on after an error. What is there by now, also if it has finished, stays as it is."""
        backoff, give_up_at = Backoff(base_s=0.02), time.monotonic() + PATIENCE_S
        while True:
            pause = backoff.next_s()
            if not error.retryable or time.monotonic() + pause > give_up_at:
                raise error
            await asyncio.sleep(pause)
            try:
                there = await self._link.run("fetch", *(job.id.bytes for job in jobs))
                left = [at for at, text in enumerate(there) if not text]
                if not left:
                    return {}
                return await self._send([jobs[at] for at in left], [encoded[at] for at in left])
            except BrokerError as next_error:
                error = next_error

    async def _take_back(self, jobs: Sequence[PreparedJob]) -> None:
        for at in range(0, len(jobs), CHUNK):
            some = jobs[at : at + CHUNK]
            await self._link.run("take_back", *(job.id.bytes for job in some))


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

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
        if len(encoded) == 1:
            answer = await self._link.run("push", *encoded[0])
        else:
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


def _check_within(jobs: Sequence[PreparedJob]) -> None:
    """Find two of the call that must not have the same key, before anything is stored."""
    held: dict[bytes, UUID] = {}
    for job in jobs:
        if job.unique is not None:
            found = held.setdefault(job.unique.key, job.id)
            if found != job.id and job.unique.on_conflict == "raise":
                raise DuplicateJob(found, job.func)

"""What workers hold, by their own account and by the server's.

A server that took over, or that was killed before it had written everything, may have forgotten the
end of a job and still know of its claim. Nobody runs that job then, and its worker lives.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from uuid import UUID

from chancy.attempt import Claim, Settlement
from chancy.plugins.redis import records
from chancy.plugins.redis.link import Link
from chancy.plugins.redis.pieces import BATCH
from chancy.states import State

logger = logging.getLogger("chancy.redis")

#: Seconds between two looks of a worker at what the server says that it holds. What two of them
#: find is lost: by then an answer that is late has come, and what nobody fetched was given back.
EVERY_S = 10.0
#: Workers of a process, those that were declared dead too. Above it the first ones are dropped.
MOST_WORKERS = 1_000


class Holdings:
    """The claims of the workers of this process that have not been settled."""

    def __init__(self, link: Link) -> None:
        self._link = link
        #: The lease of each job, by worker.
        self._held: dict[UUID, dict[UUID, UUID]] = {}
        #: When to look again, and what the last look has found, by worker and queue.
        self._looks: dict[tuple[UUID, str], tuple[float, Mapping[UUID, UUID]]] = {}

    def add(self, worker_id: UUID, claims: Sequence[Claim]) -> None:
        """A worker has been given these."""
        held = self._held.get(worker_id)
        if held is None:
            if len(self._held) >= MOST_WORKERS:
                self.forget(next(iter(self._held)))
            held = self._held[worker_id] = {}
        for claim in claims:
            held[claim.id] = claim.lease

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """The server has taken these, or found them stale."""
        for held in self._held.values():
            for one in settlements:
                if held.get(one.id) == one.lease:
                    del held[one.id]

    def forget(self, worker_id: UUID) -> None:
        """Drop what is remembered of a worker that has left."""
        self._held.pop(worker_id, None)
        for key in [key for key in self._looks if key[0] == worker_id]:
            del self._looks[key]

    async def lost(self, worker_id: UUID, queue: str) -> Sequence[Claim]:
        """Of what the server says that a worker holds, what it has not got, and not by mistake.

        Mostly nothing, at once: it looks seldom.

        :raises BrokerError: as `Link.run`.
        """
        held, now = self._held.get(worker_id), time.monotonic()
        if held is None:
            return []
        look_at, before = self._looks.get((worker_id, queue), (now + EVERY_S, {}))
        if now < look_at:
            self._looks[worker_id, queue] = look_at, before
            return []
        claims = [one for one in await self._unknown(worker_id, held) if one.queue == queue]
        found = {claim.id: claim.lease for claim in claims if claim.id not in held}
        self._looks[worker_id, queue] = now + EVERY_S, found
        again = [one for one in claims if one.id in found and before.get(one.id) == one.lease]
        if again:
            logger.warning(
                "ends_were_lost queue=%s jobs=%d: the server has forgotten how they ended; they "
                "run again",
                queue,
                len(again),
            )
        return sorted(again, key=lambda claim: (-claim.priority, claim.position))

    async def _unknown(self, worker_id: UUID, held: Mapping[UUID, UUID]) -> Sequence[Claim]:
        key = f"{self._link.tag}:w:".encode() + worker_id.bytes
        members: set[bytes] = set()
        cursor: bytes | str = "0"
        while True:
            cursor, some = await self._link.command("SSCAN", key, cursor, "COUNT", 1_000)
            members.update(some)
            if cursor == b"0":
                break
        # The rest, if there is any, is found by the looks after these have run.
        ids = sorted(id for id in members if UUID(bytes=id) not in held)[:BATCH]
        if not ids:
            return []
        texts = await self._link.run("fetch", 0, 0, *ids)
        running = [(id, one) for id, one in zip(ids, texts, strict=False) if one[:1] == _RUNNING]
        claims = [records.claim(id, text) for id, text in running]
        return [claim for claim in claims if claim.worker_id == worker_id]


_RUNNING = bytes([State.RUNNING])

"""Claiming, without losing a claim whose answer was lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from chancy.attempt import Claim
from chancy.errors import BrokerUnavailable
from chancy.identity import new_ids
from chancy.plugins.redis import records
from chancy.plugins.redis.link import Link

logger = logging.getLogger("chancy.redis")

#: Jobs of one script: it holds up everybody else for 2 ms.
MOST = 250
#: Seconds for which a claim without an answer may still be carried out by the server.
_UNKNOWN_FOR_S = 30.0
_LEASES = 64
#: Claims without an answer that are remembered: the workers of a process times their queues.
_MOST_UNKNOWN = 1_000


@dataclass(slots=True)
class _Unknown:
    """A claim whose answer was lost."""

    lease: UUID
    since: float
    asked_at: float = 0.0


class Claims:
    """The claims of the workers of this process."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._leases: list[UUID] = []
        self._unknown: dict[tuple[UUID, str], list[_Unknown]] = {}

    async def claim(self, queue: str, *, worker_id: UUID, limit: int) -> Sequence[Claim]:
        """See `Broker.claim`."""
        if limit <= 0:
            return []
        if self._unknown and (found := await self._recover(queue, worker_id)):
            return found
        lease = self._lease()
        began = time.monotonic()
        claims: list[Claim] = []
        try:
            while len(claims) < limit:
                most = min(MOST, limit - len(claims))
                answer: list[Any] = await self._link.run(
                    "claim", queue, worker_id.bytes, lease.bytes, most
                )
                claims += _claims(answer)
                if len(answer) < 2 * most:
                    break
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, BrokerUnavailable):
                unknown = self._unknown.setdefault((worker_id, queue), [])
                if len(unknown) < _MOST_UNKNOWN:
                    unknown.append(_Unknown(lease, began))
            raise
        return claims

    def forget(self, worker_id: UUID) -> None:
        """Drop what is remembered of a worker that has left."""
        for key in [key for key in self._unknown if key[0] == worker_id]:
            del self._unknown[key]

    def _lease(self) -> UUID:
        if not self._leases:
            self._leases = new_ids(_LEASES)
        return self._leases.pop()

    async def _recover(self, queue: str, worker_id: UUID) -> list[Claim]:
        """The jobs of claims whose answer was lost; asked again until they cannot come any more."""
        unknown = self._unknown.get((worker_id, queue), [])
        now = time.monotonic()
        for one in list(unknown):
            if now - one.asked_at < 1.0:
                continue
            answer = await self._link.run("recover", worker_id.bytes, one.lease.bytes)
            one.asked_at = now
            if answer or now - one.since > _UNKNOWN_FOR_S:
                unknown.remove(one)
            if answer:
                found = sorted(_claims(answer), key=lambda claim: (-claim.priority, claim.position))
                logger.info("claim_recovered queue=%s jobs=%d", queue, len(found))
                return found
        if not unknown:
            self._unknown.pop((worker_id, queue), None)
        return []


def _claims(answer: Sequence[bytes]) -> list[Claim]:
    return list(map(records.claim, answer[::2], answer[1::2]))

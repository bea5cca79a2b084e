"""Claiming jobs, and recovering claims whose reply was lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import never
from chancy.errors import BrokerError, BrokerUnavailable
from chancy.plugins.redis import records
from chancy.plugins.redis.jobs import meta as folding
from chancy.plugins.redis.jobs.decoding import Settle, decode_claims
from chancy.plugins.redis.transport.chunks import MOVED
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.states import State

logger = logging.getLogger("chancy.redis")

#: Seconds for which the server may still execute a claim without a reply.
_UNKNOWN_FOR_S = 30.0
#: Most unanswered claims that are remembered for a worker and queue.
_MOST_UNKNOWN = 1_000


@dataclass(slots=True)
class _UnansweredScript:
    """A claim script whose reply was lost, or whose claims no caller got."""

    lease: UUID
    since: float
    asked_at: float = 0.0


class RedisClaims:
    """The claims of the workers of this process.

    :param settle: `Broker.settle`, for claims that are released.
    :param address: where the process listens for notifications of its own.
    """

    def __init__(self, client: ShardClient, settle: Settle, address: bytes) -> None:
        self._client = client
        self._address = address
        self._settle = settle
        self._unknown: dict[tuple[UUID, str], list[_UnansweredScript]] = {}
        # The worker of each claim call in flight, and the leases that its claims may have.
        self._calls: list[tuple[UUID, set[UUID]]] = []
        # By worker and queue: functions that the worker knows, of jobs that were set aside.
        self._set_aside: dict[tuple[UUID, str], Sequence[str]] = {}

    async def claim(
        self, queue: str, *, worker_id: UUID, limit: int, knows: Callable[[str], bool] = never
    ) -> Sequence[Claim]:
        """See `Broker.claim`."""
        if limit <= 0:
            return []
        if self._unknown and (found := await self._recover(queue, worker_id)):
            if len(found) > limit:
                await self._release(found[limit:])
            return found[:limit]
        leases: set[UUID] = set()
        call = (worker_id, leases)
        self._calls.append(call)
        try:
            if (worker_id, queue) in self._set_aside:
                funcs = self._set_aside.pop((worker_id, queue))
                if found := await self._claim_set_aside(queue, worker_id, limit, leases, funcs):
                    return found
            found, funcs = await self._claim(queue, worker_id, limit, leases)
            if known := list(filter(knows, funcs)):
                if not found:
                    return await self._claim_set_aside(queue, worker_id, limit, leases, known)
                self._set_aside[worker_id, queue] = known
            return found
        finally:
            # By identity: another call may compare equal.
            self._calls = [other for other in self._calls if other is not call]

    async def _claim_set_aside(
        self, queue: str, worker_id: UUID, limit: int, leases: set[UUID], funcs: Sequence[str]
    ) -> list[Claim]:
        """Claim jobs of these functions that were set aside."""
        lease, sent_at = uuid4(), time.monotonic()
        leases.add(lease)
        try:
            answer: list[Any] = await self._client.run(
                "claim_aside", queue, worker_id.bytes, lease.bytes, min(MOVED, limit), *funcs
            )
        except BaseException as error:
            self._failed(error, worker_id, queue, lease, sent_at)
            raise
        return await self._fresh(answer, lease, worker_id)

    def _failed(
        self, error: BaseException, worker_id: UUID, queue: str, lease: UUID, sent_at: float
    ) -> None:
        """Remember a script that the server may have executed."""
        if not isinstance(error, Exception) or isinstance(error, BrokerUnavailable):
            self._remember(worker_id, queue, lease, sent_at)

    def _remember(self, worker_id: UUID, queue: str, lease: UUID, sent_at: float) -> None:
        unknown = self._unknown.setdefault((worker_id, queue), [])
        if len(unknown) < _MOST_UNKNOWN:
            unknown.append(_UnansweredScript(lease, sent_at))

    async def _claim(
        self, queue: str, worker_id: UUID, limit: int, leases: set[UUID]
    ) -> tuple[list[Claim], Sequence[str]]:
        """Claim pending jobs. Also returns the functions of jobs that were set aside."""
        claims: list[Claim] = []
        funcs: Sequence[str] = ()
        while len(claims) < limit:
            # A lease for each script: if a later reply is lost, the earlier claims are known.
            lease, sent_at = uuid4(), time.monotonic()
            leases.add(lease)
            most = min(MOVED, limit - len(claims))
            try:
                answer: list[Any] = await self._client.run(
                    "claim", queue, worker_id.bytes, lease.bytes, most, self._address
                )
                claims += await self._fresh(answer[2:], lease, worker_id)
            except BaseException as error:
                self._failed(error, worker_id, queue, lease, sent_at)
                if claims and isinstance(error, BrokerError):
                    break
                self._forgo(claims, worker_id, queue)
                raise
            funcs = list(map(records.text_of, answer[1]))
            if answer[0] != 1:
                break
        return claims, funcs

    def _forgo(self, claims: Sequence[Claim], worker_id: UUID, queue: str) -> None:
        """Have the next claim call recover claims that the caller does not get."""
        for lease in {claim.lease for claim in claims}:
            self._remember(worker_id, queue, lease, time.monotonic())

    async def _fresh(self, answer: Sequence[bytes], lease: UUID, worker_id: UUID) -> list[Claim]:
        """The new claims of ids and records."""
        fresh = await decode_claims(answer, self._settle, (lease, worker_id))
        if any(claim.meta is not None for claim in fresh):
            await self._fold(fresh, dict(zip(answer[::2], answer[1::2], strict=True)))
        return fresh

    async def _fold(self, claims: Sequence[Claim], found: Mapping[bytes, bytes]) -> None:
        for claim in claims:
            if claim.meta is not None and folding.is_long(record := found[claim.id.bytes]):
                await folding.fold(self._client, claim.id, claim.lease, record)

    def unsure(self, worker_id: UUID) -> Collection[UUID]:
        """The leases of a worker's claims that are in flight, or whose reply was lost recently."""
        since = time.monotonic() - _UNKNOWN_FOR_S
        lost = {
            script.lease
            for (worker, _), unknown in self._unknown.items()
            if worker == worker_id
            for script in unknown
            if script.since > since
        }
        return lost.union(*(leases for worker, leases in self._calls if worker == worker_id))

    def leave(self, worker_id: UUID) -> None:
        """Drop the state of a worker that has left."""
        for entries in (self._unknown, self._set_aside):
            for key in [key for key in entries if key[0] == worker_id]:
                del entries[key]

    async def _release(self, claims: Sequence[Claim]) -> None:
        """Release claims. If the server is unavailable, their worker releases them later."""
        try:
            await self._settle(
                [Settlement(claim.id, claim.lease, State.PENDING, refund=True) for claim in claims]
            )
        except BrokerError as error:
            logger.warning("claims_not_released jobs=%d error=%s", len(claims), error)

    async def _recover(self, queue: str, worker_id: UUID) -> list[Claim]:
        """The claims of scripts whose reply was lost.

        Each script is looked up once per second, until the server cannot execute it any more.
        """
        unknown = self._unknown.get((worker_id, queue), [])
        now = time.monotonic()
        for script in list(unknown):
            if now - script.asked_at < 1.0:
                continue
            claims = await self._of_lease(worker_id, script.lease)
            script.asked_at = now
            if claims or now - script.since > _UNKNOWN_FOR_S:
                unknown.remove(script)
            if claims:
                found = sorted(claims, key=lambda claim: (-claim.priority, claim.position))
                logger.info("claim_recovered queue=%s jobs=%d", queue, len(found))
                return found
        if not unknown:
            self._unknown.pop((worker_id, queue), None)
        return []

    async def _of_lease(self, worker_id: UUID, lease: UUID) -> Collection[Claim]:
        """All claims with a lease, read page by page."""
        found: dict[UUID, Claim] = {}
        cursor: bytes | str = "0"
        while True:
            answer = await self._client.run("recover", worker_id.bytes, lease.bytes, cursor)
            cursor = answer[0]
            found |= {claim.id: claim for claim in await decode_claims(answer[1:], self._settle)}
            if cursor == b"0":
                return found.values()

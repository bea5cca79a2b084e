"""Claiming jobs, and recovering claims whose reply was lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Settlement
from chancy.clock import Backoff
from chancy.errors import BrokerError, BrokerUnavailable
from chancy.job.ids import new_ids
from chancy.plugins.redis import records
from chancy.plugins.redis.jobs import meta as folding
from chancy.plugins.redis.jobs.handoff import PATIENCE_S, Handoff
from chancy.plugins.redis.transport.chunks import MOVED
from chancy.plugins.redis.transport.shard_client import ShardClient
from chancy.states import State

logger = logging.getLogger("chancy.redis")

#: Seconds for which the server may still execute a claim without a reply.
_UNKNOWN_FOR_S = 30.0
_LEASES = 64
#: Most unanswered claims that are remembered for a worker and queue.
_MOST_UNKNOWN = 1_000
_NO_LEASE = UUID(int=0)
#: Most seconds between two attempts to release claims.
_AGAIN_S = 5.0


@dataclass(slots=True)
class _UnansweredScript:
    """A claim script whose reply was lost."""

    lease: UUID
    since: float
    asked_at: float = 0.0


Settle = Callable[[Sequence[Settlement]], Awaitable[frozenset[UUID]]]


class RedisClaims:
    """The claims of the workers of this process.

    :param settle: `Broker.settle`, for claims that are released.
    """

    def __init__(self, client: ShardClient, settle: Settle) -> None:
        self._client = client
        self._settle = settle
        self._leases: list[UUID] = []
        self._unknown: dict[tuple[UUID, str], list[_UnansweredScript]] = {}
        # The worker of each claim call in flight, and the leases that its claims may have.
        self._calls: list[tuple[UUID, set[UUID]]] = []
        self._releases: set[asyncio.Task[None]] = set()
        self._confirming: set[tuple[UUID, str]] = set()
        self._closed = asyncio.Event()
        #: Receives pushed jobs for waiting workers, while `listening` is true.
        self.handoff = Handoff(self._release, self._confirm)
        self.listening = False

    async def claim(self, queue: str, *, worker_id: UUID, limit: int) -> Sequence[Claim]:
        """See `Broker.claim`."""
        if limit <= 0:
            return []
        if handed := self.handoff.fetch(worker_id, queue, limit):
            return handed
        if self._unknown and (found := await self._recover(queue, worker_id)):
            self.handoff.store(found[limit:])
            return found[:limit]
        leases: set[UUID] = set()
        call = (worker_id, leases)
        self._calls.append(call)
        try:
            return await self._claim(queue, worker_id, limit, leases)
        finally:
            # By identity: another call may compare equal.
            self._calls = [other for other in self._calls if other is not call]

    async def _claim(
        self, queue: str, worker_id: UUID, limit: int, leases: set[UUID]
    ) -> Sequence[Claim]:
        claims: list[Claim] = []
        missed: list[Claim] = []
        lease, sent_at = _NO_LEASE, 0.0
        try:
            while len(claims) < limit:
                # A lease for each script: if a later reply is lost, the earlier claims are known.
                lease, sent_at = self._lease(), time.monotonic()
                leases.add(lease)
                most = min(MOVED, limit - len(claims))
                handed, fresh, more = await self._run_claim(queue, worker_id, lease, most)
                missed += handed
                leases.update(claim.lease for claim in handed)
                claims += fresh
                if not more:
                    break
        except BaseException as error:
            self.handoff.store([*missed, *claims])
            if not isinstance(error, Exception) or isinstance(error, BrokerUnavailable):
                unknown = self._unknown.setdefault((worker_id, queue), [])
                if len(unknown) < _MOST_UNKNOWN:
                    unknown.append(_UnansweredScript(lease, sent_at))
            raise
        room = limit - len(claims)
        self.handoff.store(missed[room:])
        return [*missed[:room], *claims]

    async def _run_claim(
        self, queue: str, worker_id: UUID, lease: UUID, most: int
    ) -> tuple[list[Claim], list[Claim], bool]:
        """Run the script ``claim`` once.

        :returns: handed-off claims that did not arrive, new claims, and whether there may be more.
        """
        received, sent = self.handoff.unconfirmed(worker_id, queue), time.monotonic()
        answer: list[Any] = await self._client.run(
            "claim",
            queue,
            worker_id.bytes,
            lease.bytes,
            most,
            self.handoff.name,
            int(self.listening),
            *received,
        )
        self.handoff.confirmed(worker_id, queue, received)
        self.handoff.skew = sent - float(answer[1])
        at = 3 + 2 * answer[0]
        missed, ids, found = _claims(answer[3:at]), answer[at::2], answer[at + 1 :: 2]
        fresh = list(map(records.claim, ids, found, repeat((lease, worker_id))))
        for claim, record in zip(fresh, found, strict=True):
            if claim.meta is not None and folding.is_long(record):
                await folding.fold(self._client, claim.id, claim.lease, record)
        return self.handoff.missed(missed), fresh, answer[2] == 1

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

    async def leave(self, worker_id: UUID) -> None:
        """Release the claims that a leaving worker has not fetched, and drop its state."""
        for key in [key for key in self._unknown if key[0] == worker_id]:
            del self._unknown[key]
        for queue in self.handoff.queues(worker_id):
            missed, _, _ = await self._run_claim(queue, worker_id, _NO_LEASE, 0)
            self.handoff.store(missed)
            waiting = self.handoff.fetch(worker_id, queue, _MOST_UNKNOWN)
            if waiting:
                # One attempt: a leaving worker does not wait for the server. The rest is rescued.
                await self._release_once(waiting)
        self.handoff.remove(worker_id)

    def open(self) -> None:
        """Start releasing claims that are not fetched in time."""
        self._closed = asyncio.Event()
        self._confirming.clear()

    async def close(self) -> None:
        """Finish releases in progress, with one attempt each.

        Claims that could not be released stay claimed until their worker is presumed dead.
        """
        self._closed.set()
        if self._releases:
            await asyncio.wait(self._releases)

    def _release(self, claims: Sequence[Claim]) -> None:
        # They cannot be fetched any more: after an error another worker may have them.
        self._start(self._until_done(partial(self._release_once, claims)))

    def _confirm(self, worker_id: UUID, queue: str) -> None:
        """Fetch the handed-off claims of a worker from the server, to be claimed or released."""
        if (worker_id, queue) not in self._confirming:
            self._confirming.add((worker_id, queue))
            self._start(self._until_done(partial(self._confirm_once, worker_id, queue)))

    async def _confirm_once(self, worker_id: UUID, queue: str) -> bool:
        try:
            missed, _, _ = await self._run_claim(queue, worker_id, _NO_LEASE, 0)
        except BrokerError as error:
            logger.warning("handoff_unconfirmed queue=%s error=%s", queue, error)
            return False
        self._confirming.discard((worker_id, queue))
        self.handoff.store(missed)
        return True

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed.is_set():
            work.close()
            return
        task = asyncio.create_task(work, name="chancy redis claims released")
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _until_done(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Repeat an attempt until it returns true or the claims are closed."""
        backoff, closed = Backoff(base_s=PATIENCE_S, cap_s=_AGAIN_S), self._closed
        while not await attempt() and not closed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await closed.wait()
                    return

    async def _release_once(self, claims: Sequence[Claim]) -> bool:
        """Release claims; False if the server is unavailable. Idempotent."""
        released = [
            Settlement(claim.id, claim.lease, State.PENDING, refund=True) for claim in claims
        ]
        try:
            await self._settle(released)
        except BrokerError as error:
            logger.warning("handoff_release_failed jobs=%d error=%s", len(claims), error)
            return False
        return True

    def _lease(self) -> UUID:
        if not self._leases:
            self._leases = new_ids(_LEASES)
        return self._leases.pop()

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
            found |= {claim.id: claim for claim in _claims(answer[1:])}
            if cursor == b"0":
                return found.values()


def _claims(answer: Sequence[bytes]) -> list[Claim]:
    return list(map(records.claim, answer[::2], answer[1::2]))

"""Claiming, without losing a claim whose answer was lost."""

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
from chancy.plugins.redis.jobs.settle import settle
from chancy.plugins.redis.transport.chunks import MOVED
from chancy.plugins.redis.transport.shard_client import ShardClient
from chancy.states import State

logger = logging.getLogger("chancy.redis")

#: Seconds for which a claim without an answer may still be carried out by the server.
_UNKNOWN_FOR_S = 30.0
_LEASES = 64
#: Claims without an answer that are remembered: the workers of a process times their queues.
_MOST_UNKNOWN = 1_000
_NO_LEASE = UUID(int=0)
#: Seconds at the most until claims that could not be given back are given back again.
_AGAIN_S = 5.0


@dataclass(slots=True)
class _UnansweredScript:
    """A claim whose answer was lost."""

    lease: UUID
    since: float
    asked_at: float = 0.0


class RedisClaims:
    """The claims of the workers of this process.

    :param keep: how many finished and how many failed jobs the server keeps.
    """

    def __init__(self, link: ShardClient, keep: tuple[int, int]) -> None:
        self._link = link
        self._kept = keep
        self._leases: list[UUID] = []
        self._unknown: dict[tuple[UUID, str], list[_UnansweredScript]] = {}
        # The workers of claims that are under way, and the leases of what these may give.
        self._calls: list[tuple[UUID, set[UUID]]] = []
        self._returns: set[asyncio.Task[None]] = set()
        self._asking: set[tuple[UUID, str]] = set()
        self._closed = asyncio.Event()
        #: Where workers wait for what is pushed, while `attended` is set.
        self.desk = Handoff(self._give_back, self._look)
        self.attended = False

    async def claim(self, queue: str, *, worker_id: UUID, limit: int) -> Sequence[Claim]:
        """See `Broker.claim`."""
        if limit <= 0:
            return []
        if given := self.desk.fetch(worker_id, queue, limit):
            return given
        if self._unknown and (found := await self._recover(queue, worker_id)):
            self.desk.keep(found[limit:])
            return found[:limit]
        leases: set[UUID] = set()
        call = (worker_id, leases)
        self._calls.append(call)
        try:
            return await self._claim(queue, worker_id, limit, leases)
        finally:
            # By identity: another call may be its equal.
            self._calls = [one for one in self._calls if one is not call]

    async def _claim(
        self, queue: str, worker_id: UUID, limit: int, leases: set[UUID]
    ) -> Sequence[Claim]:
        claims: list[Claim] = []
        missed: list[Claim] = []
        lease, began = _NO_LEASE, 0.0
        try:
            while len(claims) < limit:
                # One for each script: what one has given is known, whatever becomes of the next.
                lease, began = self._lease(), time.monotonic()
                leases.add(lease)
                most = min(MOVED, limit - len(claims))
                given, fresh, more = await self._ask(queue, worker_id, lease, most)
                missed += given
                leases.update(claim.lease for claim in given)
                claims += fresh
                if not more:
                    break
        except BaseException as error:
            self.desk.keep([*missed, *claims])
            if not isinstance(error, Exception) or isinstance(error, BrokerUnavailable):
                unknown = self._unknown.setdefault((worker_id, queue), [])
                if len(unknown) < _MOST_UNKNOWN:
                    unknown.append(_UnansweredScript(lease, began))
            raise
        room = limit - len(claims)
        self.desk.keep(missed[room:])
        return [*missed[:room], *claims]

    async def _ask(
        self, queue: str, worker_id: UUID, lease: UUID, most: int
    ) -> tuple[list[Claim], list[Claim], bool]:
        """What was given and did not come, what is claimed now, and whether there may be more."""
        came, sent = self.desk.came(worker_id, queue), time.monotonic()
        answer: list[Any] = await self._link.run(
            "claim",
            queue,
            worker_id.bytes,
            lease.bytes,
            most,
            self.desk.name,
            int(self.attended),
            *came,
        )
        self.desk.told(worker_id, queue, came)
        self.desk.skew = sent - float(answer[1])
        at = 3 + 2 * answer[0]
        missed, ids, found = _claims(answer[3:at]), answer[at::2], answer[at + 1 :: 2]
        fresh = list(map(records.claim, ids, found, repeat((lease, worker_id))))
        for claim, record in zip(fresh, found, strict=True):
            if claim.meta is not None and folding.is_long(record):
                await folding.fold(self._link, claim.id, claim.lease, record)
        return self.desk.missed(missed), fresh, answer[2] == 1

    def unsure(self, worker_id: UUID) -> Collection[UUID]:
        """The leases of the claims of a worker whose answer may come yet: it is waited for, however
        long that takes, or was lost."""
        since = time.monotonic() - _UNKNOWN_FOR_S
        lost = {
            one.lease
            for (worker, _), unknown in self._unknown.items()
            if worker == worker_id
            for one in unknown
            if one.since > since
        }
        return lost.union(*(leases for worker, leases in self._calls if worker == worker_id))

    async def leave(self, worker_id: UUID) -> None:
        """Give back what a worker that leaves was given last, and drop what is remembered of it."""
        for key in [key for key in self._unknown if key[0] == worker_id]:
            del self._unknown[key]
        for queue in self.desk.queues(worker_id):
            missed, _, _ = await self._ask(queue, worker_id, _NO_LEASE, 0)
            self.desk.keep(missed)
            waiting = self.desk.fetch(worker_id, queue, _MOST_UNKNOWN)
            if waiting:
                # Once: whoever leaves does not wait for the server. What it keeps is rescued.
                await self._settle_back(waiting)
        self.desk.forget(worker_id)

    def open(self) -> None:
        """Give back from now on what nobody fetches."""
        self._closed = asyncio.Event()
        self._asking.clear()

    async def close(self) -> None:
        """Let what is being given back be given back, if the server takes it at once. The rest
        stays claimed until its worker is taken for dead."""
        self._closed.set()
        if self._returns:
            await asyncio.wait(self._returns)

    def _give_back(self, claims: Sequence[Claim]) -> None:
        # Nobody can fetch them any more: after an error they may be with another worker.
        self._begin(self._until_done(partial(self._settle_back, claims)))

    def _look(self, worker_id: UUID, queue: str) -> None:
        """Ask what was given to a worker, for its next claim, or to give it back."""
        if (worker_id, queue) not in self._asking:
            self._asking.add((worker_id, queue))
            self._begin(self._until_done(partial(self._look_once, worker_id, queue)))

    async def _look_once(self, worker_id: UUID, queue: str) -> bool:
        try:
            missed, _, _ = await self._ask(queue, worker_id, _NO_LEASE, 0)
        except BrokerError as error:
            logger.warning("handoff_unconfirmed queue=%s error=%s", queue, error)
            return False
        self._asking.discard((worker_id, queue))
        self.desk.keep(missed)
        return True

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed.is_set():
            work.close()
            return
        task = asyncio.create_task(work, name="chancy redis claims given back")
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def _until_done(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        """Try until it is done, or we close."""
        backoff, closed = Backoff(base_s=PATIENCE_S, cap_s=_AGAIN_S), self._closed
        while not await attempt() and not closed.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(backoff.next_s()):
                    await closed.wait()
                    return

    async def _settle_back(self, claims: Sequence[Claim]) -> bool:
        """Whether the server took them back. Repeated, it changes nothing of what it took."""
        back = [Settlement(one.id, one.lease, State.PENDING, refund=True) for one in claims]
        try:
            await settle(self._link, self._kept, back)
        except BrokerError as error:
            logger.warning("handoff_release_failed jobs=%d error=%s", len(claims), error)
            return False
        return True

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
            claims = await self._of_lease(worker_id, one.lease)
            one.asked_at = now
            if claims or now - one.since > _UNKNOWN_FOR_S:
                unknown.remove(one)
            if claims:
                found = sorted(claims, key=lambda claim: (-claim.priority, claim.position))
                logger.info("claim_recovered queue=%s jobs=%d", queue, len(found))
                return found
        if not unknown:
            self._unknown.pop((worker_id, queue), None)
        return []

    async def _of_lease(self, worker_id: UUID, lease: UUID) -> Collection[Claim]:
        """What was claimed with a lease, piece by piece."""
        found: dict[UUID, Claim] = {}
        cursor: bytes | str = "0"
        while True:
            answer = await self._link.run("recover", worker_id.bytes, lease.bytes, cursor)
            cursor = answer[0]
            found |= {claim.id: claim for claim in _claims(answer[1:])}
            if cursor == b"0":
                return found.values()


def _claims(answer: Sequence[bytes]) -> list[Claim]:
    return list(map(records.claim, answer[::2], answer[1::2]))

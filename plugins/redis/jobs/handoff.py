"""Jobs that a push gives at once to a worker that waits for them, so that nobody has to ask.

A worker whose claim finds too little waits at the desk of its process. The script of a push that
finds it there claims the job for it, and publishes it to the desk. Every claim says what came, and
is told what else was given: a job is not lost with the message, and not taken twice.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.plugins.redis import records

logger = logging.getLogger("chancy.redis")

#: Seconds after which a job that no claim has fetched from the desk goes back: its queue is no
#: longer served here, or has no room.
PATIENCE_S = 0.25
#: Seconds after which what arrives is not taken: who was frozen or cut off may have lost it to
#: another, and asks. Far below any time after which a worker is taken for dead.
LATE_S = 0.5
_WORKER, _ID = 16, 32
#: Workers of a process, those that were declared dead too, times their queues. Above it those go
#: that have not been asked for the longest, but for what the server does not know yet that it came:
#: it would give that again. It forgets by itself what it has given after `_FORGOTTEN_S`.
MOST_PLACES = 1_000
_FORGOTTEN_S = 86_400.0

_moment: Callable[[bytes], tuple[float, ...]] = struct.Struct(">d").unpack_from


@dataclass(slots=True)
class _WaitingWorker:
    """Of one worker and queue."""

    #: Given, and not yet fetched by a claim.
    waiting: list[Claim] = field(default_factory=list[Claim])
    #: Of what was given: lease and id as one. The server does not know yet that it came.
    came: set[bytes] = field(default_factory=set[bytes])
    #: When the last one was given of which the server knows: what comes later is not new.
    known: float = 0.0
    #: The same of places that went, of which this one may be one: whether it is new is asked.
    doubted: float = 0.0


class Handoff:
    """Where what was given to the workers of this process waits for their next claim.

    :param give_back: told what nobody has fetched.
    :param ask: told of a worker and a queue for which something came that was not taken, and that
        no claim has asked for since: the worker may never claim there again.
    """

    def __init__(
        self,
        give_back: Callable[[Sequence[Claim]], None],
        ask: Callable[[UUID, str], None],
    ) -> None:
        self._give_back = give_back
        self._ask = ask
        self._doubted = 0.0
        self._places: dict[tuple[UUID, str], _WaitingWorker] = {}
        #: Seconds of our clock less those of the server's, or a little less; None: not known yet.
        self.skew: float | None = None
        #: Names it on the server.
        self.name = uuid.uuid4().hex.encode()

    def hear(self, payload: bytes) -> str | None:
        """Take what was published; the queue whose worker is to claim, None if it is not new.

        What comes late is left for the claim to ask for.
        """
        claim = records.claim(payload[_WORKER:_ID], payload[_ID:])
        place = self._places.get((claim.worker_id, claim.queue))
        given_at = _moment(claim.lease.bytes)[0]
        if place is not None and given_at <= place.known:
            return None
        age_s = None if self.skew is None else time.monotonic() - self.skew - given_at
        if place is None or given_at <= place.doubted or age_s is None or age_s > LATE_S:
            asyncio.get_running_loop().call_later(PATIENCE_S, self._doubt, claim, given_at)
            return claim.queue
        if not _note(place, claim):
            return None
        self.keep([claim])
        return claim.queue

    def keep(self, claims: Sequence[Claim]) -> None:
        """Have claims of one worker and queue wait for the next one that fetches them."""
        if claims:
            place = self._place(claims[0].worker_id, claims[0].queue)
            place.waiting += claims
            asyncio.get_running_loop().call_later(PATIENCE_S, self._expire, place, claims)

    def fetch(self, worker_id: UUID, queue: str, limit: int) -> list[Claim]:
        """What waits."""
        place = self._places.get((worker_id, queue))
        if place is None or not place.waiting:
            return []
        found = place.waiting[:limit]
        del place.waiting[:limit]
        return found

    def queues(self, worker_id: UUID) -> Sequence[str]:
        """Where a worker has waited."""
        return [queue for worker, queue in self._places if worker == worker_id]

    def came(self, worker_id: UUID, queue: str) -> Sequence[bytes]:
        """What to tell the server that it came."""
        return list(self._place(worker_id, queue).came)

    def told(self, worker_id: UUID, queue: str, came: Sequence[bytes]) -> None:
        """The server knows of these."""
        if came:
            place = self._place(worker_id, queue)
            place.came.difference_update(came)
            place.known = max(place.known, *(_moment(one)[0] for one in came))

    def missed(self, claims: Sequence[Claim]) -> list[Claim]:
        """Of what the server says was given, that which has not come."""
        return [
            claim for claim in claims if _note(self._place(claim.worker_id, claim.queue), claim)
        ]

    def forget(self, worker_id: UUID) -> None:
        """Drop what is remembered of a worker that has left."""
        for queue in self.queues(worker_id):
            del self._places[worker_id, queue]

    def _doubt(self, claim: Claim, given_at: float) -> None:
        """Ask for what came and was not taken, if no claim has done it meanwhile."""
        place = self._places.get((claim.worker_id, claim.queue))
        if place is None or (given_at > place.known and _name(claim) not in place.came):
            self._ask(claim.worker_id, claim.queue)

    def _place(self, worker_id: UUID, queue: str) -> _WaitingWorker:
        place = self._places.pop((worker_id, queue), None)
        if place is None:
            if len(self._places) >= MOST_PLACES:
                self._drop_one()
            place = _WaitingWorker(doubted=self._doubted)
        # The last one that was asked for is the last to go.
        self._places[worker_id, queue] = place
        return place

    def _drop_one(self) -> None:
        now = time.monotonic() - (self.skew or 0.0)
        for key, place in self._places.items():
            newest = max((_moment(one)[0] for one in place.came), default=-_FORGOTTEN_S)
            if not place.waiting and newest < now - _FORGOTTEN_S:
                self._doubted = max(self._doubted, place.known)
                del self._places[key]
                return

    def _expire(self, place: _WaitingWorker, claims: Sequence[Claim]) -> None:
        waiting = set(place.waiting)
        left = [claim for claim in claims if claim in waiting]
        if left:
            gone = set(left)
            place.waiting = [claim for claim in place.waiting if claim not in gone]
            for claim in left:
                logger.info("handoff_released queue=%s job=%s", claim.queue, claim.id)
            self._give_back(left)


def _note(place: _WaitingWorker, claim: Claim) -> bool:
    """Whether it is new."""
    one = _name(claim)
    if one in place.came:
        return False
    place.came.add(one)
    return True


def _name(claim: Claim) -> bytes:
    return claim.lease.bytes + claim.id.bytes

"""Handing a pushed job directly to a waiting worker, without a round trip to claim it.

A worker whose claim returns too few jobs is parked on the server, with the handoff of its process.
The script of a push that finds it claims the job for it and publishes the job to the handoff. Each
claim confirms the jobs that arrived, and returns the handed-off jobs that did not: no job is lost
with its message, and none runs twice.
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

#: Seconds after which a job that no claim has fetched is released: its queue is no longer served
#: here, or has no room.
PATIENCE_S = 0.25
#: Seconds after which a job that arrives is not accepted, but confirmed with the server first: a
#: process that was frozen or cut off may have lost it. Far below any timeout after which a worker
#: is presumed dead.
LATE_S = 0.5
_WORKER, _ID = 16, 32
#: Most entries of a process: its workers, including dead ones, times their queues. Above it the
#: least recently used entries are dropped, except those with unconfirmed jobs, which the server
#: would hand off again. The server drops its own list of these jobs after `_FORGOTTEN_S`.
MOST_ENTRIES = 1_000
_FORGOTTEN_S = 86_400.0

_time_of: Callable[[bytes], tuple[float, ...]] = struct.Struct(">d").unpack_from


@dataclass(slots=True)
class _WaitingWorker:
    """The entry of one worker and queue."""

    #: Claims that were handed off and that no claim call has fetched yet.
    waiting: list[Claim] = field(default_factory=list[Claim])
    #: Lease and id of each job that arrived and is not confirmed to the server yet.
    unconfirmed: set[bytes] = field(default_factory=set[bytes])
    #: Handoff time of the newest confirmed job; a message that is not newer is a duplicate.
    confirmed_at: float = 0.0
    #: `confirmed_at` of dropped entries, possibly of this one: older messages need confirmation.
    dropped_at: float = 0.0


class Handoff:
    """Jobs handed to the workers of this process, until their next claim call fetches them.

    :param release: called with claims that no claim call has fetched in time.
    :param confirm: called with a worker and a queue whose job arrived but was not accepted, and
        for which no claim was sent since: the worker may never claim there again.
    """

    def __init__(
        self,
        release: Callable[[Sequence[Claim]], None],
        confirm: Callable[[UUID, str], None],
    ) -> None:
        self._release = release
        self._confirm = confirm
        self._dropped_at = 0.0
        self._entries: dict[tuple[UUID, str], _WaitingWorker] = {}
        #: Our monotonic clock minus the server's clock in seconds, or slightly less; None: unknown.
        self.skew: float | None = None
        #: Identifies this handoff on the server.
        self.name = uuid.uuid4().hex.encode()

    def receive(self, payload: bytes) -> str | None:
        """Accept a published job.

        A late job is not accepted: the next claim confirms it with the server.

        :returns: the queue whose worker should claim; None for a duplicate.
        """
        claim = records.claim(payload[_WORKER:_ID], payload[_ID:])
        entry = self._entries.get((claim.worker_id, claim.queue))
        given_at = _time_of(claim.lease.bytes)[0]
        if entry is not None and given_at <= entry.confirmed_at:
            return None
        age_s = None if self.skew is None else time.monotonic() - self.skew - given_at
        if entry is None or given_at <= entry.dropped_at or age_s is None or age_s > LATE_S:
            loop = asyncio.get_running_loop()
            loop.call_later(PATIENCE_S, self._confirm_late, claim, given_at)
            return claim.queue
        if not _add(entry, claim):
            return None
        self.store([claim])
        return claim.queue

    def store(self, claims: Sequence[Claim]) -> None:
        """Store claims of one worker and queue for its next claim call."""
        if claims:
            entry = self._entry(claims[0].worker_id, claims[0].queue)
            entry.waiting += claims
            asyncio.get_running_loop().call_later(PATIENCE_S, self._expire, entry, claims)

    def fetch(self, worker_id: UUID, queue: str, limit: int) -> list[Claim]:
        """Remove and return up to `limit` stored claims."""
        entry = self._entries.get((worker_id, queue))
        if entry is None or not entry.waiting:
            return []
        found = entry.waiting[:limit]
        del entry.waiting[:limit]
        return found

    def queues(self, worker_id: UUID) -> Sequence[str]:
        """The queues on which a worker has waited."""
        return [queue for worker, queue in self._entries if worker == worker_id]

    def unconfirmed(self, worker_id: UUID, queue: str) -> Sequence[bytes]:
        """Lease and id of the jobs that arrived and that the next claim should confirm."""
        return list(self._entry(worker_id, queue).unconfirmed)

    def confirmed(self, worker_id: UUID, queue: str, received: Sequence[bytes]) -> None:
        """Record that the server has the confirmation of these jobs."""
        if received:
            entry = self._entry(worker_id, queue)
            entry.unconfirmed.difference_update(received)
            newest = max(_time_of(token)[0] for token in received)
            entry.confirmed_at = max(entry.confirmed_at, newest)

    def missed(self, claims: Sequence[Claim]) -> list[Claim]:
        """Those of the handed-off claims that the server reports which have not arrived."""
        return [claim for claim in claims if _add(self._entry(claim.worker_id, claim.queue), claim)]

    def remove(self, worker_id: UUID) -> None:
        """Drop the entries of a worker that has left."""
        for queue in self.queues(worker_id):
            del self._entries[worker_id, queue]

    def _confirm_late(self, claim: Claim, given_at: float) -> None:
        """Confirm a job that was not accepted, unless a claim has done so meanwhile."""
        entry = self._entries.get((claim.worker_id, claim.queue))
        if entry is None or (
            given_at > entry.confirmed_at and _token(claim) not in entry.unconfirmed
        ):
            self._confirm(claim.worker_id, claim.queue)

    def _entry(self, worker_id: UUID, queue: str) -> _WaitingWorker:
        entry = self._entries.pop((worker_id, queue), None)
        if entry is None:
            if len(self._entries) >= MOST_ENTRIES:
                self._drop_oldest()
            entry = _WaitingWorker(dropped_at=self._dropped_at)
        # Reinserted last: the dict is ordered by last use.
        self._entries[worker_id, queue] = entry
        return entry

    def _drop_oldest(self) -> None:
        now = time.monotonic() - (self.skew or 0.0)
        for key, entry in self._entries.items():
            times = (_time_of(token)[0] for token in entry.unconfirmed)
            newest = max(times, default=-_FORGOTTEN_S)
            if not entry.waiting and newest < now - _FORGOTTEN_S:
                self._dropped_at = max(self._dropped_at, entry.confirmed_at)
                del self._entries[key]
                return

    def _expire(self, entry: _WaitingWorker, claims: Sequence[Claim]) -> None:
        waiting = set(entry.waiting)
        left = [claim for claim in claims if claim in waiting]
        if left:
            expired = set(left)
            entry.waiting = [claim for claim in entry.waiting if claim not in expired]
            for claim in left:
                logger.info("handoff_released queue=%s job=%s", claim.queue, claim.id)
            self._release(left)


def _add(entry: _WaitingWorker, claim: Claim) -> bool:
    """Add a job to the unconfirmed ones; False if it is already there."""
    token = _token(claim)
    if token in entry.unconfirmed:
        return False
    entry.unconfirmed.add(token)
    return True


def _token(claim: Claim) -> bytes:
    return claim.lease.bytes + claim.id.bytes

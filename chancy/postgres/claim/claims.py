"""Claims jobs: starts at position hints, and recovers claims whose response was lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.contract import never
from chancy.broker.values import MOST_SET_ASIDE
from chancy.errors import BrokerError, BrokerUnavailable
from chancy.job.ids import new_ids
from chancy.postgres import rows
from chancy.postgres.claim.hints import ClaimHints, Hints
from chancy.postgres.connections.lane import Lane
from chancy.postgres.statements import Statements

logger = logging.getLogger("chancy.postgres")

#: Seconds for which the server may still execute a claim whose response was lost: the lock timeout
#: of the claim (2 s) and the time until the server notices that its client is gone.
_UNKNOWN_FOR_S = 30.0
#: Deadline of a claim in seconds. It waits for locks for 2 s at most.
_DEADLINE_S = 10.0
#: Maximum and minimum bytes of arguments and meta in a claim, as the server stores them, which may
#: be compressed. The bound is halved after each lost response, and doubled after claims that use it
#: and are quick.
MOST_BYTES = 4 * 1024 * 1024
_LEAST_BYTES = 64 * 1024
#: Characters of a claim beyond which the next one gets a lower bound.
MOST_TEXT = 16 * 1024 * 1024
#: A stored value takes at most this many times the bytes of its JSON.
STORED_PER_JSON = 8
#: After a claim of this many jobs, the next one takes turns with the claims of other workers, as
#: claims from the front do. Claims of fewer jobs run at the same time: each waits for its commit.
_MANY = 64
#: Seconds after which a commit that waits for a synchronous standby counts as unconfirmed.
_UNCONFIRMED_S = 5.0
#: Leases that are generated at a time.
_LEASES = 64


@dataclass(slots=True)
class _UnansweredClaim:
    """A claim whose response was lost."""

    lease: UUID
    since: float
    checked_at: float = 0.0
    #: Ids of its jobs that were recovered so far.
    recovered: list[UUID] = field(default_factory=list[UUID])


@dataclass(slots=True)
class _QueueState:
    """The hints and unanswered claims of one worker and one queue."""

    hints: ClaimHints = field(default_factory=ClaimHints)
    unanswered: list[_UnansweredClaim] = field(default_factory=list[_UnansweredClaim])
    #: Maximum bytes of a claim.
    bytes: int = MOST_BYTES
    #: Whether the last claim got many jobs.
    many: bool = False
    #: Whether commits waited for a standby at the last check.
    unconfirmed: bool = False
    generation: int = 0
    #: Functions that the worker knows, of jobs that were set aside, until these are claimed.
    set_aside: list[str] = field(default_factory=list[str])
    #: Whether the next claim has to scan from the front, as there may be more such jobs.
    rescan: bool = False
    #: The error of the last scan from the front.
    front_error: BrokerError | None = None


class PostgresClaims:
    """Claims jobs for the workers of this process."""

    def __init__(self, lane: Lane, statements: Statements) -> None:
        self._lane = lane
        self._sql = statements
        self._leases: list[UUID] = []
        self._states: dict[tuple[UUID, str], _QueueState] = {}

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool,
        knows: Callable[[str], bool] = never,
        statement: str | None = None,
    ) -> Sequence[Claim]:
        """Claim jobs of a queue, or return those of a claim whose response was lost.

        A scan from the front returns the functions of jobs that were set aside. Jobs of functions
        that the worker knows are claimed by another statement: at once if the scan has claimed
        nothing, otherwise by the next call. So neither kind of job waits until the other is done.

        :param statement: see `chancy.broker.optional.SqlClaims`; it gets no hints.
        """
        state = self._states.get((worker_id, queue))
        if state is None:
            state = self._states[worker_id, queue] = _QueueState()
        if state.unanswered:
            found = await self._recover(state, queue, worker_id)
            if found:
                return found
        if state.set_aside:
            found = await self._take_set_aside(state, worker_id, queue, limit)
            if found:
                state.rescan = state.rescan or thorough
                return found
        if statement is not None:
            found, funcs = await self._take(state, statement, worker_id, queue, limit)
            state.set_aside = list(filter(knows, funcs))
            if found or not state.set_aside:
                return found
            return await self._take_set_aside(state, worker_id, queue, limit)
        found, funcs = await self._claim(state, worker_id, queue, limit, thorough=thorough)
        if funcs:
            state.set_aside = list(filter(knows, funcs))
            if state.set_aside and not found:
                return await self._take_set_aside(state, worker_id, queue, limit)
        return found

    async def _claim(
        self, state: _QueueState, worker_id: UUID, queue: str, limit: int, *, thorough: bool
    ) -> tuple[list[Claim], list[str]]:
        """Claim pending jobs. A scan from the front also returns the functions of jobs that were
        set aside."""
        place = worker_id, queue, limit
        generation = await self._lane.ready()
        if state.generation != generation:
            # A new session, perhaps to another server whose sequence is behind.
            state.hints, state.generation = ClaimHints(), generation
        started = time.monotonic()
        if state.hints.sample_due(started):
            ((drawn, oldest, following),) = await self._lane.fetch(self._sql.last_position)
            state.hints.sample(drawn or 0, oldest, following, now=started)
            started = time.monotonic()
        thorough, state.rescan = thorough or state.rescan, False
        if thorough and state.front_error is not None:
            # Dead entries may slow the scan down until it times out: jobs behind them do not wait.
            hints = state.hints.plan(started, thorough=False)
            if hints is not None:  # the next scan is not due
                state.rescan = True
                if found := await self._claim_at(state, hints, *place):
                    return found, []
                raise state.front_error.with_traceback(None)
        hints = state.hints.plan(started, thorough=thorough)
        if hints is not None:
            return await self._claim_at(state, hints, *place), []
        try:
            found, funcs = await self._take(
                state, self._sql.claim_front, *place, state.bytes, MOST_SET_ASIDE
            )
        except BrokerError as error:
            now, state.front_error = time.monotonic(), error
            state.hints.front_failed(now=now, took_s=now - started)
            raise
        now, state.front_error = time.monotonic(), None
        state.many = len(found) >= _MANY
        full = _check_size(state, found, limit, now - started)
        state.hints.learn_front(found, full=full, now=now, took_s=now - started)
        return found, funcs

    async def _claim_at(
        self, state: _QueueState, hints: Hints, worker_id: UUID, queue: str, limit: int
    ) -> list[Claim]:
        """Claim pending jobs from the hints on."""
        started = time.monotonic()
        # As text: encoding them as arrays takes an idle process 0.02 ms.
        priorities, positions = map(_array, hints)
        found, _ = await self._take(
            state,
            self._sql.claim,
            worker_id,
            queue,
            priorities,
            positions,
            limit,
            state.bytes,
            state.many,
        )
        state.many = len(found) >= _MANY
        took_s = time.monotonic() - started
        full = _check_size(state, found, limit, took_s)
        state.hints.learn(found, full=full, took_s=took_s)
        return found

    async def _take_set_aside(
        self, state: _QueueState, worker_id: UUID, queue: str, limit: int
    ) -> list[Claim]:
        """Claim jobs of `state.set_aside`."""
        funcs, state.set_aside = state.set_aside, []
        started = time.monotonic()
        found, _ = await self._take(
            state, self._sql.claim_set_aside, worker_id, queue, limit, funcs, state.bytes
        )
        state.rescan = _check_size(state, found, limit, time.monotonic() - started)
        return found

    async def _take(
        self, state: _QueueState, statement: str, worker_id: UUID, queue: str, *parameters: object
    ) -> tuple[list[Claim], list[str]]:
        """The claims of a statement, and the functions of its rows without an id."""
        lease, started = self._lease(), time.monotonic()
        try:
            found = await self._lane.fetch(
                statement, worker_id, lease, queue, *parameters, deadline_s=_DEADLINE_S
            )
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, BrokerUnavailable):
                state.unanswered.append(_UnansweredClaim(lease, started))
                state.bytes = max(state.bytes // 2, _LEAST_BYTES)
            raise
        claimed = len(found)
        while claimed and found[claimed - 1][0] is None:
            claimed -= 1
        funcs = [row[3] for row in found[claimed:]]
        if funcs:
            found = found[:claimed]
        return rows.claims(found, lease=lease, worker_id=worker_id, queue=queue), funcs

    def _lease(self) -> UUID:
        """A new lease. They are generated in batches: one alone takes an idle process 0.04 ms."""
        if not self._leases:
            self._leases = new_ids(_LEASES)
        return self._leases.pop()

    def unanswered_leases(self, worker_id: UUID) -> Sequence[UUID]:
        """The leases of a worker's claims that the server may still execute."""
        since = time.monotonic() - _UNKNOWN_FOR_S
        return [
            claim.lease
            for (worker, _), state in self._states.items()
            if worker == worker_id
            for claim in state.unanswered
            if claim.since > since
        ]

    def remove_worker(self, worker_id: UUID) -> None:
        """Drop the state of a worker that has stopped."""
        for key in [key for key in self._states if key[0] == worker_id]:
            del self._states[key]

    async def _recover(self, state: _QueueState, queue: str, worker_id: UUID) -> list[Claim]:
        """Some jobs of a claim whose response was lost; empty if there are none (yet).

        Each such claim is checked once a second for as long as the server may execute it. Its jobs
        come in pieces of limited size.

        :raises BrokerUnavailable: commits wait for a standby, so the jobs may still be claimed.
            Another claim would wait as well, on a session that the server does not give up either.
        """
        now, checked = time.monotonic(), False
        for claim in list(state.unanswered):
            if now - claim.checked_at < 1.0:
                continue
            checked = True
            found = await self._fetch_recovered(state, claim, queue, worker_id)
            claim.checked_at = now
            if found:
                # The next call continues, without a pause.
                claim.since, claim.checked_at = now, 0.0
                claim.recovered += [one.id for one in found]
                logger.info("claim_recovered queue=%s jobs=%d", queue, len(found))
                return found
            if claim.recovered or now - claim.since > _UNKNOWN_FOR_S:
                state.unanswered.remove(claim)
        if checked and state.unanswered:
            ((state.unconfirmed,),) = await self._lane.fetch(self._sql.unconfirmed, _UNCONFIRMED_S)
        if state.unanswered and state.unconfirmed:
            for claim in state.unanswered:
                claim.since = now
            raise BrokerUnavailable(
                f"commits have waited for a synchronous standby for over {_UNCONFIRMED_S:g} s: "
                "nothing is claimed until it confirms them"
            )
        return []

    async def _fetch_recovered(
        self, state: _QueueState, claim: _UnansweredClaim, queue: str, worker_id: UUID
    ) -> list[Claim]:
        try:
            found = await self._lane.fetch(
                self._sql.recover,
                worker_id,
                claim.lease,
                claim.recovered,
                state.bytes,
                deadline_s=_DEADLINE_S,
            )
        except BrokerUnavailable:
            state.bytes = max(state.bytes // 2, _LEAST_BYTES)
            raise
        return rows.claims(found, lease=claim.lease, worker_id=worker_id, queue=queue)


def _check_size(state: _QueueState, claims: Sequence[Claim], limit: int, took_s: float) -> bool:
    """Adapt the bound on bytes; returns whether there may be more jobs to claim."""
    size = sum(claim.size for claim in claims)
    bound = state.bytes
    if size > MOST_TEXT:
        state.bytes = max(bound * MOST_TEXT // size, _LEAST_BYTES)
    elif bound // 2 <= size <= MOST_TEXT // 2 and took_s < _DEADLINE_S / 4:
        state.bytes = min(bound * 2, MOST_BYTES)
    return len(claims) >= limit or size * STORED_PER_JSON >= bound


def _array(numbers: Sequence[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"

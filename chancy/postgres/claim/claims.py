"""Claims jobs: starts at position hints, and recovers claims whose response was lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.errors import BrokerUnavailable
from chancy.job.ids import new_ids
from chancy.postgres import rows
from chancy.postgres.claim.hints import ClaimHints
from chancy.postgres.connections.dedicated import DedicatedSession
from chancy.postgres.statements import Statements

logger = logging.getLogger("chancy.postgres")

#: Seconds for which the server may still execute a claim whose response was lost: the lock timeout
#: of the claim (2 s) and the time until the server notices that its client is gone.
_UNKNOWN_FOR_S = 30.0
#: Deadline of a claim in seconds. It waits for locks for 2 s at most.
_DEADLINE_S = 10.0
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


@dataclass(slots=True)
class _QueueState:
    """The hints and unanswered claims of one worker and one queue."""

    hints: ClaimHints = field(default_factory=ClaimHints)
    unanswered: list[_UnansweredClaim] = field(default_factory=list)
    #: Whether commits waited for a standby at the last check.
    unconfirmed: bool = False
    generation: int = 0


class PostgresClaims:
    """Claims jobs for the workers of this process."""

    def __init__(self, session: DedicatedSession, statements: Statements) -> None:
        self._session = session
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
        statement: str | None = None,
    ) -> Sequence[Claim]:
        """Claim jobs of a queue, or return those of a claim whose response was lost.

        :param statement: see `chancy.broker.optional.SqlClaims`; it gets no hints.
        """
        state = self._states.get((worker_id, queue))
        if state is None:
            state = self._states[worker_id, queue] = _QueueState()
        if state.unanswered:
            found = await self._recover(state, queue, worker_id)
            if found:
                return found
        if state.generation != self._session.generation:
            # A new session, perhaps to another server whose sequence is behind.
            state.hints = ClaimHints()
        if statement is not None:
            return await self._take(state, statement, worker_id, queue, limit)
        started = time.monotonic()
        hints = state.hints.plan(started, thorough=thorough)
        # As text: encoding them as arrays takes an idle process 0.02 ms.
        priorities, positions = (None, None) if hints is None else map(_array, hints)
        found = await self._take(
            state, self._sql.claim, worker_id, queue, priorities, positions, limit
        )
        state.generation = self._session.generation
        if hints is None:
            now = time.monotonic()
            state.hints.learn_front(found, limit=limit, now=now, took_s=now - started)
        else:
            state.hints.learn(found, limit=limit)
        return found

    async def _take(
        self, state: _QueueState, statement: str, worker_id: UUID, queue: str, *parameters: object
    ) -> list[Claim]:
        lease, started = self._lease(), time.monotonic()
        try:
            found = await self._session.fetch(
                statement, worker_id, lease, queue, *parameters, deadline_s=_DEADLINE_S
            )
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, BrokerUnavailable):
                state.unanswered.append(_UnansweredClaim(lease, started))
            raise
        return rows.claims(found, lease=lease, worker_id=worker_id, queue=queue)

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
        """The jobs of a claim whose response was lost; empty if there are none (yet).

        Each such claim is checked once a second for as long as the server may execute it.

        :raises BrokerUnavailable: commits wait for a standby, so the jobs may still be claimed.
            Another claim would wait as well, on a session that the server does not give up either.
        """
        now, checked = time.monotonic(), False
        for claim in list(state.unanswered):
            if now - claim.checked_at < 1.0:
                continue
            checked = True
            found = rows.claims(
                await self._session.fetch(self._sql.recover, worker_id, claim.lease),
                lease=claim.lease,
                worker_id=worker_id,
                queue=queue,
            )
            claim.checked_at = now
            if found or now - claim.since > _UNKNOWN_FOR_S:
                state.unanswered.remove(claim)
            if found:
                logger.info("claim_recovered queue=%s jobs=%d", queue, len(found))
                return found
        if checked and state.unanswered:
            ((state.unconfirmed,),) = await self._session.fetch(
                self._sql.unconfirmed, _UNCONFIRMED_S
            )
        if state.unanswered and state.unconfirmed:
            for claim in state.unanswered:
                claim.since = now
            raise BrokerUnavailable(
                f"commits have waited for a synchronous standby for over {_UNCONFIRMED_S:g} s: "
                "nothing is claimed until it confirms them"
            )
        return []


def _array(numbers: Sequence[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"

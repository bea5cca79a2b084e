"""Claiming: with hints, and without losing a claim whose answer was lost."""

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

#: Seconds for which a claim without an answer may still be carried out by the server: the lock
#: timeout of the claim (2 s) and the time until the server notices that its client is gone.
_UNKNOWN_FOR_S = 30.0
#: A claim does not wait for locks longer than 2 s; a server that needs longer is not well.
_DEADLINE_S = 10.0
#: Seconds after which a commit that waits for a synchronous standby is not about to be confirmed.
_UNCONFIRMED_S = 5.0
#: Leases that are made at a time.
_LEASES = 64


@dataclass(slots=True)
class _UnansweredClaim:
    """A claim whose answer was lost."""

    lease: UUID
    since: float
    asked_at: float = 0.0


@dataclass(slots=True)
class _Side:
    """What is remembered for one worker and one queue."""

    lanes: ClaimHints = field(default_factory=ClaimHints)
    unknown: list[_UnansweredClaim] = field(default_factory=list)
    #: Whether commits waited for a standby at the last look.
    unconfirmed: bool = False
    generation: int = 0


class PostgresClaims:
    """The claims of the workers of this process."""

    def __init__(self, link: DedicatedSession, statements: Statements) -> None:
        self._link = link
        self._sql = statements
        self._leases: list[UUID] = []
        self._sides: dict[tuple[UUID, str], _Side] = {}

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool,
        statement: str | None = None,
    ) -> Sequence[Claim]:
        """
        :param statement: see `chancy.broker.optional.SqlClaims`; it is given no hints.
        """
        side = self._sides.get((worker_id, queue))
        if side is None:
            side = self._sides[worker_id, queue] = _Side()
        if side.unknown:
            found = await self._recover(side, queue, worker_id)
            if found:
                return found
        if side.generation != self._link.generation:
            # Another session, perhaps another server, whose sequence may have gone back.
            side.lanes = ClaimHints()
        if statement is not None:
            return await self._take(side, statement, worker_id, queue, limit)
        began = time.monotonic()
        hints = side.lanes.plan(began, thorough=thorough)
        # As text: an idle process takes 0.02 ms to make arrays of them.
        lanes, positions = (None, None) if hints is None else map(_array, hints)
        found = await self._take(side, self._sql.claim, worker_id, queue, lanes, positions, limit)
        side.generation = self._link.generation
        if hints is None:
            now = time.monotonic()
            side.lanes.learn_front(found, limit=limit, now=now, took_s=now - began)
        else:
            side.lanes.learn(found, limit=limit)
        return found

    async def _take(
        self, side: _Side, statement: str, worker_id: UUID, queue: str, *parameters: object
    ) -> list[Claim]:
        lease, began = self._lease(), time.monotonic()
        try:
            found = await self._link.fetch(
                statement, worker_id, lease, queue, *parameters, deadline_s=_DEADLINE_S
            )
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, BrokerUnavailable):
                side.unknown.append(_UnansweredClaim(lease, began))
            raise
        return rows.claims(found, lease=lease, worker_id=worker_id, queue=queue)

    def _lease(self) -> UUID:
        """A new one of a few that were made together: one takes an idle process 0.04 ms."""
        if not self._leases:
            self._leases = new_ids(_LEASES)
        return self._leases.pop()

    def unsure(self, worker_id: UUID) -> Sequence[UUID]:
        """The leases of the claims of a worker whose answer may come yet."""
        since = time.monotonic() - _UNKNOWN_FOR_S
        return [
            unknown.lease
            for (worker, _), side in self._sides.items()
            if worker == worker_id
            for unknown in side.unknown
            if unknown.since > since
        ]

    def forget(self, worker_id: UUID) -> None:
        """Drop what is remembered of a worker that has left."""
        for key in [key for key in self._sides if key[0] == worker_id]:
            del self._sides[key]

    async def _recover(self, side: _Side, queue: str, worker_id: UUID) -> list[Claim]:
        """The jobs of claims whose answer was lost; asked again until they cannot come any more.

        :raises BrokerUnavailable: they may come yet, as commits wait for a standby. One more claim
            would wait like them, on a session that the server does not give up either.
        """
        now, asked = time.monotonic(), False
        for unknown in list(side.unknown):
            if now - unknown.asked_at < 1.0:
                continue
            asked = True
            found = rows.claims(
                await self._link.fetch(self._sql.recover, worker_id, unknown.lease),
                lease=unknown.lease,
                worker_id=worker_id,
                queue=queue,
            )
            unknown.asked_at = now
            if found or now - unknown.since > _UNKNOWN_FOR_S:
                side.unknown.remove(unknown)
            if found:
                logger.info("claim_recovered queue=%s jobs=%d", queue, len(found))
                return found
        if asked and side.unknown:
            ((side.unconfirmed,),) = await self._link.fetch(self._sql.unconfirmed, _UNCONFIRMED_S)
        if side.unknown and side.unconfirmed:
            for unknown in side.unknown:
                unknown.since = now
            raise BrokerUnavailable(
                f"commits have waited for a synchronous standby for over {_UNCONFIRMED_S:g} s: "
                "nothing is claimed before it confirms them"
            )
        return []


def _array(numbers: Sequence[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"

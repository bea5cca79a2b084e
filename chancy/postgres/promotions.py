"""Promotion of due jobs, starting behind the index entries of those promoted before."""

from __future__ import annotations

import time
from uuid import UUID

from chancy.broker.values import Promotion
from chancy.postgres.connections.lane import Lane
from chancy.postgres.front_scans import FrontScans
from chancy.postgres.statements import Statements

#: Seconds before the time up to which all due jobs are promoted. Scheduled jobs of transactions
#: that take longer are found by the next scan from the front.
_TRAIL_S = 2.0


class Promotions:
    """Promotes due jobs, and remembers up to which time."""

    def __init__(self, lane: Lane, statements: Statements) -> None:
        self._lane = lane
        self._sql = statements
        self._front_scans = FrontScans()
        #: Seconds since the epoch, by the server's clock; None: start at the front.
        self._after: float | None = None
        self._generation = 0

    async def promote(self, limit: int, worker_id: UUID | None) -> Promotion:
        """See `chancy.broker.contract.Broker.promote`."""
        generation = await self._lane.ready()
        if generation != self._generation:
            # A new session, perhaps to a server whose clock is behind.
            self._after, self._generation = None, generation
        started = time.monotonic()
        after = None if self._front_scans.due(started) else self._after
        try:
            ((promoted, next_due_s, reached, ahead),) = await self._lane.fetch(
                self._sql.promote, limit, after, worker_id
            )
        finally:  # also after a timeout: until the next one, promotions start behind dead entries
            if after is None:
                now = time.monotonic()
                self._front_scans.ended(now, took_s=now - started)
        self._after = reached if promoted >= limit else reached - _TRAIL_S
        return Promotion(promoted, next_due_s, ahead)

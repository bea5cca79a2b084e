"""The election: a lease in the database, and how long its holder relies on it."""

from __future__ import annotations

import asyncio
import logging
import random
from uuid import UUID

from chancy.broker.optional import SqlStore
from chancy.clock import LEASE_TRUSTED, Backoff, ClockReading
from chancy.errors import BrokerError
from chancy.plugin.runtime import Runtime
from chancy.plugin.tables import PluginSql

logger = logging.getLogger("chancy.leadership")

SQL = PluginSql("chancy.plugins.leadership", "leases")
#: Timeout in seconds for releasing the lease at the end; an unreleased lease expires.
_RESIGN_S = 2.0
#: Seconds over which workers spread their attempts after a notification that the lease is free.
_SPREAD_S = 0.05
#: Renewal intervals before the next attempt when the server refused one for a permanent reason.
_REFUSED = 12


class Election:
    """The leader gate of one worker, answered from memory without a query.

    :param lease_s: seconds after which the lease expires in the database.
    :param renew_s: seconds between renewals.
    """

    def __init__(
        self, runtime: Runtime, store: SqlStore, *, lease_s: float, renew_s: float
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._lease_s = lease_s
        self._renew_s = renew_s
        self._elect = SQL.statement("elect", store.schema)
        self._resign = SQL.statement("resign", store.schema)
        self._backoff = Backoff(base_s=renew_s / 10, cap_s=renew_s)
        #: The worker id that may hold the lease; set before the lease is requested.
        self._candidate: UUID | None = None
        self._term: int | None = None
        self._renewed = ClockReading(runtime.clock)
        self._taken = asyncio.Event()
        self._vacant = asyncio.Event()

    @property
    def term(self) -> int | None:
        """The term in which this worker leads now; None: it does not lead.

        The age of the lease counts from before the renewal was sent. The server starts to count
        later, so this is None before the lease expires there, however long this process was
        suspended.
        """
        if self._term is None or self._candidate != self._runtime.worker_id:
            return None
        return self._term if self._renewed.ago_s < self._lease_s * LEASE_TRUSTED else None

    @property
    def leading(self) -> bool:
        return self.term is not None

    async def wait(self) -> int:
        """Wait until this worker leads; returns the term."""
        while (term := self.term) is None:
            self._taken.clear()
            await self._taken.wait()
        return term

    def vacant(self) -> None:
        """Start an election soon: the leader has resigned."""
        self._vacant.set()

    async def serve(self) -> None:
        """Stand for election until cancelled, then release the lease."""
        try:
            while True:
                pause_s = await self._stand()
                if await self._runtime.clock.wait(self._vacant, pause_s):
                    self._vacant.clear()
                    await self._runtime.clock.sleep(random.uniform(0, _SPREAD_S))
        finally:
            await self._leave()

    async def _stand(self) -> float:
        """Take or renew the lease if possible; returns the seconds until the next attempt."""
        holder = self._runtime.worker_id
        if self._candidate != holder:
            # The worker was declared dead and has registered under a new id.
            self._set(None)
        self._candidate = holder
        asked_at = ClockReading(self._runtime.clock)
        try:
            rows = await self._store.fetch(self._elect, holder, self._lease_s)
        except BrokerError as error:
            pause_s = self._backoff.next_s() if error.retryable else _REFUSED * self._renew_s
            logger.warning(
                "election_failed leading=%s next_try_s=%.1f error=%s",
                "true" if self.leading else "false",
                pause_s,
                error,
            )
            return pause_s
        self._backoff.reset()
        if not rows:
            # Another worker took the lease while this statement ran.
            return random.uniform(0, _SPREAD_S)
        leads, term, left_s = rows[0]
        if not leads:
            self._set(None)
            # The lease of the leader may be renewed before it ends: check when it would end.
            until_end_s = max(float(left_s), 0.0) + random.uniform(0, self._renew_s / 10)
            return min(until_end_s, self._renew_s * random.uniform(1.0, 1.2))
        self._renewed = asked_at
        self._set(term)
        return self._renew_s * random.uniform(0.8, 1.0)

    def _set(self, term: int | None) -> None:
        before, self._term = self._term, term
        if term is not None:
            self._taken.set()
        if before == term:
            return
        if before is not None:
            logger.info("leader_ended term=%d", before)
        if term is not None:
            logger.info("leader_began term=%d id=%s", term, self._candidate)

    async def _leave(self) -> None:
        """Release the lease if this worker may hold it: the last response may have been lost."""
        holder, leads = self._candidate, self.leading
        self._set(None)
        self._candidate = None
        if holder is None:
            return
        try:
            async with asyncio.timeout(_RESIGN_S):
                await self._store.fetch(self._resign, holder)
        except (BrokerError, TimeoutError) as error:
            if leads:
                logger.warning(
                    "resignation_failed error=%s: other workers wait until the lease expires, "
                    "at most %g s",
                    str(error) or "no response in time",
                    self._lease_s,
                )

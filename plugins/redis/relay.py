"""The relay: takes jobs out of the outbox and pushes them to Redis, each one once.

A row is taken for a while, pushed, and deleted. Who dies in between leaves it to another, who
pushes it again: Redis remembers which rows it has until they are deleted. Who is frozen in between
comes too late: Redis refuses what is pushed after the time for which it was taken.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from chancy.broker import SqlStore
from chancy.errors import StatementFailed
from chancy.plugin import Runtime
from chancy.plugins.redis import records
from chancy.plugins.redis.link import Link
from chancy.plugins.redis.outbox import Outbox, Waiting
from chancy.plugins.redis.rounds import Rounds

logger = logging.getLogger("chancy.redis")

#: Jobs that are taken at a time: the script that stores them holds up everybody else for 3 ms.
BATCH = 250
#: Seconds for which they are taken, and the part of it after which Redis refuses them: the clocks
#: of two servers may run apart by a tenth.
LEASE_S, _TRUSTED = 10.0, 0.9
#: Seconds after which a job that Redis has refused is tried again.
_REFUSED_S = 3_600.0
#: Rows that Redis remembers at most: those whose relay died stay until another has pushed them.
_MOST_MARKS = 100_000


class Relay:
    """Works beside each worker, as often as `Rounds` says."""

    def __init__(self, link: Link, store: SqlStore, runtime: Runtime) -> None:
        self._link = link
        self._outbox = Outbox(store)
        self._runtime = runtime

    async def serve(self) -> None:
        """Go on until cancelled."""
        await Rounds(self._runtime, self._link.open, self._busy).serve()

    async def _busy(self) -> bool:
        return await self.turn() == BATCH

    async def turn(self) -> int:
        """Push a batch; gives how many jobs were taken.

        :raises BrokerError: Postgres or Redis is away; what was taken is given to another later.
        """
        # Asked before they are taken: so the time of the script is over before theirs.
        seconds, micros = await self._link.command("TIME")
        late_at = int(seconds) + int(micros) / 1e6 + LEASE_S * _TRUSTED
        taken = await self._outbox.take(BATCH, LEASE_S)
        if taken:
            done = await self._push(taken, late_at)
            if done:
                await self._outbox.delete(done)
                await self._link.run("relayed", *(one.mark for one in done))
        return len(taken)

    async def _push(self, taken: Sequence[Waiting], late_at: float) -> list[Waiting]:
        """Push jobs; on a refusal each alone, so that a bad one stands alone. Gives those that
        are in Redis now."""
        try:
            parts = [part for one in taken for part in (one.mark, *records.pushed(one.job))]
            answer = await self._link.run("relay", late_at, _MOST_MARKS, *parts)
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(taken) == 1:
                logger.error("redis_relay_refused job=%s error=%s", taken[0].job.id, error)
                await self._outbox.refuse(taken[0], str(error), _REFUSED_S)
                return []
            middle = len(taken) // 2
            first = await self._push(taken[:middle], late_at)
            return first + await self._push(taken[middle:], late_at)
        if answer == b"late":
            logger.warning("redis_relay_late jobs=%d", len(taken))
            return []
        for id, holder in zip(answer[::2], answer[1::2], strict=True):
            logger.info("redis_relay_skipped job=%s holder=%s", UUID(bytes=id), UUID(bytes=holder))
        return list(taken)

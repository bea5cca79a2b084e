"""Delivery: what waits in Postgres is pushed to Redis, each job once, however often it is tried.

It is taken for a while, pushed, and deleted where it was. Who dies in between leaves it to another,
who pushes it again: Redis remembers what it has until that is deleted. Who is frozen in between
comes too late: Redis refuses what is pushed after the time for which it was taken.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from chancy.errors import StatementFailed
from chancy.plugins.redis.transport.chunks import BATCH as PIECE
from chancy.plugins.redis.transport.chunks import fit
from chancy.plugins.redis.transport.shard_client import ShardClient

logger = logging.getLogger("chancy.redis")

#: Jobs that are taken at a time; several scripts store them.
BATCH = 250
#: The part of the time for which they are taken after which Redis refuses them: the clocks of two
#: servers may run apart by a tenth.
_TRUSTED = 0.9
#: Seconds after which a job that Redis has refused is tried again.
REFUSED_S = 3_600.0
#: Jobs that Redis remembers at most, the last ones: a relay that dies before it says that they are
#: deleted leaves them for good, 24 bytes each.
_MOST_MARKS = 100_000


class Deliverable(Protocol):
    """A job that was taken."""

    @property
    def id(self) -> UUID: ...

    @property
    def mark(self) -> bytes:
        """What Redis remembers of it until it is deleted; of no other, ever."""
        ...

    def encoded(self) -> tuple[bytes, bytes]:
        """What the script ``push`` takes of it. Raises `StatementFailed`."""
        ...


P = TypeVar("P", bound=Deliverable)


class Delivery(Generic[P]):
    """Pushes what was taken.

    :param refuse: keeps a job that Redis does not take, and is told why.
    """

    def __init__(self, link: ShardClient, refuse: Callable[[P, str], Awaitable[None]]) -> None:
        self._link = link
        self._refuse = refuse

    async def late_at(self, lease_s: float) -> float:
        """When it is too late for what is taken after this call for so many seconds, by the clock
        of Redis.

        :raises BrokerError: Redis is away: there is nothing to take jobs for.
        """
        seconds, micros = await self._link.command("TIME")
        return int(seconds) + int(micros) / 1e6 + lease_s * _TRUSTED

    async def push(self, taken: Sequence[P], late_at: float) -> list[P]:
        """Push jobs; on a refusal each alone, so that a bad one stands alone. Gives those that
        are in Redis now, or whose unique key another job has there."""
        if not taken:
            return []
        try:
            encoded = [one.encoded() for one in taken]
            if fit([rest for _, rest in encoded], PIECE) < len(taken):
                return await self._push_halves(taken, late_at)
            marked = zip(taken, encoded, strict=True)
            parts = [part for one, (order, rest) in marked for part in (one.mark, order, rest)]
            answer = await self._link.run_lasting("relay", late_at, _MOST_MARKS, *parts)
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(taken) == 1:
                logger.error("redis_relay_refused job=%s error=%s", taken[0].id, error)
                await self._refuse(taken[0], str(error))
                return []
            return await self._push_halves(taken, late_at)
        if answer == b"late":
            logger.warning("redis_relay_late jobs=%d", len(taken))
            return []
        for id, holder in zip(answer[::2], answer[1::2], strict=True):
            logger.info("redis_relay_skipped job=%s holder=%s", UUID(bytes=id), UUID(bytes=holder))
        return list(taken)

    async def _push_halves(self, taken: Sequence[P], late_at: float) -> list[P]:
        middle = len(taken) // 2
        first = await self.push(taken[:middle], late_at)
        return first + await self.push(taken[middle:], late_at)

    async def forget(self, delivered: Sequence[P]) -> None:
        """Have Redis remember these no longer: they are deleted where they were."""
        if delivered:
            await self._link.run("relayed", *(one.mark for one in delivered))

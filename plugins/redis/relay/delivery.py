"""Delivery: pushing jobs that wait in Postgres to Redis, exactly once.

A job is leased, pushed, and deleted from Postgres. If the process dies in between, another one
pushes it again: Redis keeps a mark of the job until it is deleted from Postgres. If the process is
frozen in between, Redis refuses its push after the end of the lease.
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

#: Jobs leased at a time; several scripts store them.
BATCH = 250
#: The fraction of the lease after which Redis refuses the jobs: the clock rates of the two servers
#: may differ by a tenth.
_TRUSTED = 0.9
#: Seconds after which a job that Redis has refused is tried again.
REFUSED_S = 3_600.0
#: Most marks that Redis keeps, the newest ones, 24 bytes each: a relay that dies before it removes
#: its marks leaves them behind.
_MOST_MARKS = 100_000


class Deliverable(Protocol):
    """A job that was leased."""

    @property
    def id(self) -> UUID: ...

    @property
    def mark(self) -> bytes:
        """The mark that Redis keeps until the job is deleted from Postgres; never reused."""
        ...

    def encoded(self) -> tuple[bytes, bytes]:
        """The arguments of the script ``push`` for the job. Raises `StatementFailed`."""
        ...


P = TypeVar("P", bound=Deliverable)


class Delivery(Generic[P]):
    """Pushes leased jobs to Redis.

    :param refuse: called with a job that Redis refuses, and the reason; keeps the job.
    """

    def __init__(self, client: ShardClient, refuse: Callable[[P, str], Awaitable[None]]) -> None:
        self._client = client
        self._refuse = refuse

    async def late_at(self, lease_s: float) -> float:
        """The server time after which Redis refuses jobs that are leased after this call.

        :param lease_s: seconds for which the jobs will be leased.
        :raises BrokerError: Redis is unavailable, so there is no point in leasing jobs.
        """
        seconds, micros = await self._client.command("TIME")
        return int(seconds) + int(micros) / 1e6 + lease_s * _TRUSTED

    async def push(self, taken: Sequence[P], late_at: float) -> list[P]:
        """Push jobs; halve the batch when Redis refuses it, to isolate invalid jobs.

        :returns: the jobs that are in Redis now, or whose unique key another job holds there.
        """
        if not taken:
            return []
        try:
            encoded = [job.encoded() for job in taken]
            if fit([rest for _, rest in encoded], PIECE) < len(taken):
                return await self._push_halves(taken, late_at)
            marked = zip(taken, encoded, strict=True)
            parts = [part for job, (order, rest) in marked for part in (job.mark, order, rest)]
            answer = await self._client.run_lasting("relay", late_at, _MOST_MARKS, *parts)
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

    async def remove_marks(self, delivered: Sequence[P]) -> None:
        """Remove the marks of jobs that are deleted from Postgres."""
        if delivered:
            await self._client.run("relayed", *(job.mark for job in delivered))

"""A read replica for lists and counts, with the primary in its place while it is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chancy.broker.optional import SqlStore
from chancy.errors import BrokerError, ConfigurationError
from chancy.postgres.broker import PostgresBroker

if TYPE_CHECKING:
    from chancy.app.app import Chancy

logger = logging.getLogger("chancy.dashboard")

#: Seconds that the replica may take for an answer, and for which it is not asked after a failure.
_TIMEOUT_S, _PAUSE_S = 5.0, 10.0
#: Seconds for which the lag is kept, and that a page waits for it.
_LAG_KEPT_S, _LAG_TIMEOUT_S = 1.0, 1.0
_LAG = """
select case when pg_last_wal_replay_lsn() >= $1::text::pg_lsn then 0
  else greatest(extract(epoch from clock_timestamp() - pg_last_xact_replay_timestamp()), 0)
  end::float8
"""


def replica_of(chancy: Chancy, dsn: str | None) -> Replica | None:
    """The replica of an application; None: there is none."""
    return Replica(dsn, chancy.control) if dsn and isinstance(chancy.control, SqlStore) else None


class Replica(SqlStore):
    """Reads from a replica, and from the primary while the replica is away."""

    def __init__(self, dsn: str, primary: SqlStore) -> None:
        self._broker = PostgresBroker(dsn, schema=primary.schema)
        self._store = self._broker.for_upkeep()
        self._primary = primary
        self._retry_at = 0.0
        self._lag: tuple[float, float | None] = (0.0, None)
        #: Why the primary is read instead; None: the replica is.
        self.away: str | None = None

    @property
    def schema(self) -> str:
        return self._primary.schema

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        if time.monotonic() >= self._retry_at:
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    found = await self._read(sql, *params)
            except (BrokerError, ConfigurationError, TimeoutError) as error:
                if self.away is None:
                    logger.warning("replica_away error=%s", error)
                self.away = str(error) or "it has not answered in time"
                self._retry_at = time.monotonic() + _PAUSE_S
            else:
                if self.away is not None:
                    logger.info("replica_back")
                self.away = None
                return found
        return await self._primary.fetch(sql, *params)

    async def _read(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        await self._broker.open()
        return await self._store.fetch(sql, *params)

    async def behind_s(self) -> float | None:
        """Seconds by which its data are older than those of the primary; None: not known."""
        at, lag = self._lag
        if time.monotonic() - at > _LAG_KEPT_S:
            lag = await self._behind_s()
            self._lag = time.monotonic(), lag
        return lag

    async def _behind_s(self) -> float | None:
        if self.away is not None:
            return None
        try:
            async with asyncio.timeout(_LAG_TIMEOUT_S):
                ((position,),) = await self._primary.fetch("select pg_current_wal_lsn()::text")
                ((lag,),) = await self._read(_LAG, position)
        except (BrokerError, TimeoutError):
            return None  # of a service without these functions, or it is away
        return None if lag is None else float(lag)

    async def close(self) -> None:
        await self._broker.close()

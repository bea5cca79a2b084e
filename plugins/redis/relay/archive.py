"""The archive: finished jobs of Redis are written into the history in Postgres, by the leader.

Redis lists what is to be written until it is there: a leader that dies leaves it to the next one,
and what is written twice is there once. So dashboards, the pruner and dead letters see them.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from importlib import resources
from typing import NamedTuple
from uuid import UUID

from chancy.broker.optional import SqlStore
from chancy.clock import Backoff
from chancy.errors import BrokerError, StatementFailed
from chancy.plugin.leader import elected
from chancy.plugin.runtime import Runtime
from chancy.plugins.redis.relay import archive_row as history
from chancy.plugins.redis.transport.shard_client import ShardClient
from chancy.postgres.statements import load

logger = logging.getLogger("chancy.redis")

#: Jobs of one statement.
BATCH = 250
#: Seconds between two looks of the leader, and of the others.
_EVERY_S, _RARELY_S = 1.0, 30.0


class EndedJob(NamedTuple):
    """A job that is to be written: when it ended, as Redis says it, and its record."""

    id: bytes
    at: bytes
    record: bytes


class Archive:
    """Works beside each worker: the leader often, the others rarely, so that it is done without
    any leader too."""

    def __init__(self, link: ShardClient, store: SqlStore, runtime: Runtime) -> None:
        self._link = link
        self._store = store
        self._runtime = runtime
        self._sql = load(
            resources.files("chancy.plugins.redis.relay") / "sql", "archive", store.schema
        )

    async def serve(self) -> None:
        """Go on until cancelled."""
        backoff = Backoff(base_s=0.5, cap_s=10.0)
        clock, leader = self._runtime.clock, self._runtime.leader
        while True:
            await elected(leader, clock, _RARELY_S * random.uniform(0.8, 1.2))
            try:
                await self._link.open()
                while await self.turn():
                    backoff.reset()
            except BrokerError as error:
                pause_s = backoff.next_s()
                logger.warning("redis_archive_postponed next_try_s=%.1f error=%s", pause_s, error)
            else:
                backoff.reset()
                pause_s = _EVERY_S * random.uniform(0.8, 1.2)
            await clock.sleep(pause_s)

    async def turn(self) -> int:
        """Write a batch; gives how many jobs there were.

        :raises BrokerError: Postgres or Redis is away; the jobs stay listed.
        """
        over, *parts = await self._link.run("unarchived", BATCH)
        found = [EndedJob(*parts[at : at + 3]) for at in range(0, len(parts), 3)]
        lost = int(over) + sum(1 for one in found if not one.record)
        if lost:
            logger.warning("redis_archive_dropped jobs=%d", lost)
        await self._write([one for one in found if one.record])
        if found:
            await self._link.run("archived", *(part for one in found for part in one[:2]))
        return len(found)

    async def _write(self, ended: Sequence[EndedJob]) -> None:
        """Write jobs; on a refusal each alone, so that a bad one stands alone."""
        rows = [history.row(one.id, one.record) for one in ended]
        text = f"[{','.join(row for row in rows if row)}]"
        try:
            if len(text) > 2:
                await self._store.fetch(self._sql, text)
        except StatementFailed as error:
            if error.retryable:
                raise
            if len(ended) == 1:
                logger.error(
                    "redis_archive_refused job=%s error=%s", UUID(bytes=ended[0].id), error
                )
                return
            middle = len(ended) // 2
            await self._write(ended[:middle])
            await self._write(ended[middle:])

"""Purging: of jobs that failed for good nothing is left, in Redis and in the history."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.shard_client import linked
from chancy.postgres.statements import load

#: Jobs of one script: it holds up everybody else for 1 ms.
BATCH = 128


async def purge(settings: RedisSettings, control: Broker, ids: Sequence[UUID]) -> None:
    """Forget those of the jobs that failed; others stay. Safe to repeat.

    Their letters are not touched: purge those afterwards, so that whoever is killed in between
    finds them again.

    :param control: the broker that has the history.
    :raises BrokerError: Redis or Postgres is away, or refuses.
    """
    async with linked(settings) as link:
        await link.open()
        for at in range(0, len(ids), BATCH):
            some = list(ids[at : at + BATCH])
            await link.run("purge", *(id.bytes for id in some))
            if isinstance(control, SqlStore):
                folder = resources.files("chancy.plugins.redis.relay") / "sql"
                await control.fetch(load(folder, "history_forget", control.schema), some)

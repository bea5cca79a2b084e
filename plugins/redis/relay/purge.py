"""Purging failed jobs from Redis and from the history."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.shard_client import linked
from chancy.postgres.statements import load

#: Jobs of one script, which blocks the server for 1 ms.
BATCH = 128


async def purge(settings: RedisSettings, control: Broker, ids: Sequence[UUID]) -> None:
    """Delete those of the jobs that failed; others stay. Idempotent.

    Dead letters are not deleted: delete them afterwards, so that a process that is killed in
    between finds them again.

    :param control: the broker with the history.
    :raises BrokerError: Redis or Postgres is unavailable, or refuses the command.
    """
    async with linked(settings) as client:
        await client.open()
        for at in range(0, len(ids), BATCH):
            batch = list(ids[at : at + BATCH])
            await client.run("purge", *(id.bytes for id in batch))
            if isinstance(control, SqlStore):
                folder = resources.files("chancy.plugins.redis.relay") / "sql"
                await control.fetch(load(folder, "history_forget", control.schema), batch)

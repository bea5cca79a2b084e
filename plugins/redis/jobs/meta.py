"""Compaction of meta that was updated many times.

Scripts do not parse JSON, so each update appends a line: a job that is snoozed every second would
have 1.5 MB of meta after a day. A process that finds too many lines merges them into one object.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from chancy.errors import BrokerError, InvalidArguments
from chancy.plugins.redis import records
from chancy.plugins.redis.transport.shard import ShardClient

#: Lines in the meta of a job after which they are merged into one object.
MOST = 32


def is_long(record: bytes) -> bool:
    """Whether the meta of a record has at least `MOST` line breaks and should be merged."""
    return records.meta_of(record).count(b"\n") >= MOST


async def fold(client: ShardClient, id: UUID, lease: UUID, record: bytes) -> None:
    """Merge the meta of a running job into one object.

    Does nothing if the meta has changed since `record`, if it cannot be decoded, or if the server
    is unavailable: a later call merges it.
    """
    old = records.meta_of(record)
    with suppress(BrokerError, InvalidArguments, ValueError):
        await client.run("fold", id.bytes, lease.bytes, old, records.merged(old.decode()))

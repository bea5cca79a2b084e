"""Meta that was written again and again: made into one object by whoever sees that there are many.

What changes it adds a line to it, as no script reads JSON: a job that is put off each second would
have 1.5 MB of them after a day.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from chancy.errors import BrokerError
from chancy.plugins.redis import records
from chancy.plugins.redis.transport.shard_client import ShardClient

#: Objects of the meta of a job after which they are made into one.
MOST = 32


def is_long(record: bytes) -> bool:
    """Whether the meta of a record has more objects than are to be kept apart."""
    return records.meta_of(record).count(b"\n") >= MOST


async def fold(link: ShardClient, id: UUID, lease: UUID, record: bytes) -> None:
    """Make one object of the meta of a running job, if it is as in its record yet. Otherwise, and
    while the server is away, it stays as it is: it is looked at again."""
    old = records.meta_of(record)
    with suppress(BrokerError):
        await link.run("fold", id.bytes, lease.bytes, old, records.merged(old.decode()))

"""Compaction of meta that was updated many times.

Scripts do not parse JSON, so each update appends a line: a job that is snoozed every second would
have 1.5 MB of meta after a day, and one with a megabyte of checkpoints, which are written together,
a megabyte more after each. A process that finds too many lines merges them into one object.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from chancy.errors import BrokerError, InvalidArguments
from chancy.plugins.redis import records
from chancy.plugins.redis.transport.shard import ShardClient

#: Lines in the meta of a job after which they are merged into one object, and the bytes of those
#: after the first one, if there are several.
MOST, MOST_BYTES = 32, 192 * 1024


def is_due(lines: int, added: int) -> bool:
    """Whether the lines of a meta should be merged.

    :param added: bytes of the lines after the first.
    """
    return lines > MOST or (lines > 2 and added > MOST_BYTES)


def is_long(record: bytes) -> bool:
    """Whether the meta of a record should be merged."""
    meta = records.meta_of(record)
    first = meta.find(b"\n")
    return first >= 0 and is_due(meta.count(b"\n") + 1, len(meta) - first)


async def fold(client: ShardClient, id: UUID, lease: UUID, record: bytes) -> None:
    """Merge the meta of a running job into one object.

    Does nothing if the meta has changed since `record`, if it cannot be decoded, or if the server
    is unavailable: a later call merges it.
    """
    old = records.meta_of(record)
    with suppress(BrokerError, InvalidArguments, ValueError):
        await client.run("fold", id.bytes, lease.bytes, old, records.merged(old.decode()))

"""Batch sizes of scripts, which block the server while they run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from chancy.plugins.redis.transport.shard import ShardClient

#: Jobs of a script that parses each record: 1 ms, or 2 ms if each job replaces another. A busy
#: machine takes three times as long; the target is at most 5 ms.
BATCH = 64
#: Jobs of a script that reads or moves records, stores jobs of one kind, or settles plain
#: successes: half a millisecond, and three times as much while the server grows its key space.
MOVED = 128
#: Bytes of the arguments of a script: 1.5 ms on Redis 7.0, which is the slowest.
BYTES = 256 * 1024
#: Bytes that a script adds to records: scripts stop after reading 192 KiB of records, and write
#: both.
ADDED = 128 * 1024


def fit(texts: Sequence[bytes], most: int, left: int = BYTES) -> int:
    """How many of the first strings fit into one script: at least one, if there is any.

    :param left: the most bytes of all of them together.
    """
    batch = texts[:most]
    if sum(map(len, batch)) <= left:
        return len(batch)
    for count, text in enumerate(batch):
        left -= len(text)
        if left < 0:
            return max(1, count)
    return len(batch)


async def take_back(link: ShardClient, ids: Sequence[bytes]) -> set[UUID]:
    """Delete waiting jobs.

    :param ids: ids of jobs, which stay if they were ever claimed; or marks of adopted jobs, which
        stay if Redis does not keep the mark.
    :returns: the jobs among them that run, and stay.
    """
    at, running = 0, set[UUID]()
    while at < len(ids):
        checked, *found = await link.run("take_back", *ids[at : at + BATCH])
        running.update(UUID(bytes=id) for id in found)
        at += checked
    return running


async def records_of(
    run: Callable[..., Awaitable[list[bytes]]],
    ids: Sequence[UUID],
    script: str,
    *args: float,
) -> list[bytes]:
    """The records of jobs in the order of their ids; empty for missing ones.

    :param run: runs a script of a `ShardClient`.
    """
    found: list[bytes] = []
    while len(found) < len(ids):
        batch = ids[len(found) : len(found) + MOVED]
        found += await run(script, *args, *(id.bytes for id in batch))
    return found

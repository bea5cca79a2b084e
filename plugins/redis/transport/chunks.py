"""How much one script is given: the server does nothing else while it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from chancy.plugins.redis.transport.shard_client import ShardClient

#: Jobs of a script that takes each apart: 1 ms, 2 ms where each takes the place of another. A
#: machine that has much else to do takes three times as long, and 5 ms are to be enough for it.
BATCH = 64
#: Jobs of a script that reads or moves them, stores jobs that are alike, or ends them plainly: half
#: a millisecond, and three times as much while the server makes room for more keys.
MOVED = 128
#: Bytes that are given to a script: 1.5 ms on Redis 7.0, which is the slowest.
BYTES = 256 * 1024
#: Bytes of what is put into records: scripts stop by themselves after 192 KiB of these, and write
#: both.
ADDED = 128 * 1024


def fit(texts: Sequence[bytes], most: int, left: int = BYTES) -> int:
    """How many of the first ones go into one script: at least one, if there is one.

    :param left: how many bytes they may have together.
    """
    some = texts[:most]
    if sum(map(len, some)) <= left:
        return len(some)
    for count, text in enumerate(some):
        left -= len(text)
        if left < 0:
            return max(1, count)
    return len(some)


async def take_back(link: ShardClient, ids: Sequence[UUID]) -> None:
    """Have jobs that wait, and were never claimed, not be there."""
    at = 0
    while at < len(ids):
        at += await link.run("take_back", *(id.bytes for id in ids[at : at + BATCH]))


async def records_of(
    run: Callable[..., Awaitable[list[bytes]]],
    ids: Sequence[UUID],
    script: str,
    *args: float,
) -> list[bytes]:
    """The records of jobs in the order of their ids; empty for those that are not there.

    :param run: runs a script of a `ShardClient`.
    """
    found: list[bytes] = []
    while len(found) < len(ids):
        some = ids[len(found) : len(found) + MOVED]
        found += await run(script, *args, *(id.bytes for id in some))
    return found

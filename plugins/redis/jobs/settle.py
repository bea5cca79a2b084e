"""Settlements: ends of attempts, in scripts that hold up nobody."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.plugins.redis import records
from chancy.plugins.redis.transport.chunks import ADDED, BATCH, MOVED, fit
from chancy.plugins.redis.transport.shard_client import ShardClient
from chancy.states import State


async def settle(
    link: ShardClient, kept: tuple[int, int], settlements: Sequence[Settlement]
) -> frozenset[UUID]:
    """See `Broker.settle`.

    :param kept: how many finished and how many failed jobs the server keeps.
    """
    stale: set[UUID] = set()
    texts = list(map(records.settled, settlements))
    most = MOVED if all(map(_is_plain, settlements)) else BATCH
    at = 0
    while at < len(texts):
        some = texts[at : at + most]
        looked, *places = await link.run("settle", *kept, *some[: fit(some, most, ADDED)])
        stale.update(settlements[at + place].id for place in places)
        at += looked
    return frozenset(stale)


def _is_plain(one: Settlement) -> bool:
    return one.state is State.SUCCEEDED and one.meta is None

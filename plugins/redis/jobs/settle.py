"""Settling attempts in batches small enough not to block the server."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.plugins.redis import records
from chancy.plugins.redis.transport.chunks import ADDED, BATCH, MOVED, fit
from chancy.plugins.redis.transport.shard_client import ShardClient
from chancy.states import State


async def settle(
    client: ShardClient, keep: tuple[int, int], settlements: Sequence[Settlement]
) -> frozenset[UUID]:
    """See `Broker.settle`.

    :param keep: how many finished and how many failed jobs the server keeps.
    """
    stale: set[UUID] = set()
    texts = list(map(records.settled, settlements))
    most = MOVED if all(map(_is_plain, settlements)) else BATCH
    at = 0
    while at < len(texts):
        batch = texts[at : at + most]
        processed, *places = await client.run("settle", *keep, *batch[: fit(batch, most, ADDED)])
        stale.update(settlements[at + place].id for place in places)
        at += processed
    return frozenset(stale)


def _is_plain(settlement: Settlement) -> bool:
    return settlement.state is State.SUCCEEDED and settlement.meta is None

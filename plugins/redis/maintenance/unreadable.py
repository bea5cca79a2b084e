"""Records that this release cannot read: of a later release, or damaged.

Every script leaves such a record as it is, drops its job from the lists that it reads, and lists
the id under ``…:unreadable``. A worker that can read the record puts the job back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from chancy.errors import BrokerError
from chancy.plugins.redis.records import VERSION
from chancy.plugins.redis.transport.chunks import BATCH
from chancy.plugins.redis.transport.shard import ShardClient

logger = logging.getLogger("chancy.redis")

#: Most scripts of a turn; jobs after them wait for the next turn.
_MOST_BATCHES = 800
#: Seconds after which an unchanged list is logged again.
_AGAIN_S = 86_400


class SetAsideRecord(NamedTuple):
    """A record that is set aside.

    :param reason: why it cannot be read.
    """

    id: UUID
    reason: str


class UnreadableRecords:
    """The records of a shard that are set aside."""

    def __init__(self, client: ShardClient) -> None:
        self._client = client
        self._key = f"{client.tag}:unreadable"

    async def turn(self) -> int:
        """Put back the jobs that can be read now, and log the others if there are new ones.

        :returns: how many jobs were put back.
        """
        at = restored = 0
        for _ in range(_MOST_BATCHES):
            ids = await self._client.command("ZRANGE", self._key, at, at + BATCH - 1)
            if not ids:
                break
            left, added = await self._client.run("readmit", *ids)
            at, restored = at + left, restored + added
        if restored:
            logger.info("redis_records_restored jobs=%d", restored)
        await self._report()
        return restored

    async def _report(self) -> None:
        count = await self._client.command("ZCARD", self._key)
        if not count:
            return
        newest, at = await self._client.command("ZRANGE", self._key, -1, -1, "WITHSCORES")
        mark, known = b"%d %s" % (count, at), f"{self._key}:logged"
        if await self._client.command("GET", known) == mark:
            return
        await self._client.command("SET", known, mark, "EX", _AGAIN_S)
        logger.error(
            "redis_records_unreadable records=%d newest=%s reason=%s",
            count,
            UUID(bytes=newest),
            await self._reason(newest),
        )

    async def newest(self, most: int) -> tuple[int, Sequence[SetAsideRecord]]:
        """How many records are set aside, and the newest of them."""
        count = await self._client.command("ZCARD", self._key)
        ids = await self._client.command("ZREVRANGE", self._key, 0, most - 1)
        return count, [SetAsideRecord(UUID(bytes=id), await self._reason(id)) for id in ids]

    async def _reason(self, id: bytes) -> str:
        key = f"{self._client.tag}:j:".encode() + id
        try:
            head: bytes = await self._client.command("GETRANGE", key, 0, 0)
        except BrokerError as error:
            return str(error)
        if not head:
            return "it was deleted"
        if head[0] > VERSION:
            return f"version {head[0]}: a later release wrote it, this one reads version {VERSION}"
        return "it is damaged"

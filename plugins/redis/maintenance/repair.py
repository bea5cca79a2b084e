"""Restoration: jobs whose record is there, and that are missing where workers look for them.

Every script changes records, lists and counters together. What deletes one key alone, as a hand
or an eviction does, leaves jobs that nobody would ever run.
"""

from __future__ import annotations

import asyncio
import logging

from chancy.plugins.redis.transport.chunks import BATCH
from chancy.plugins.redis.transport.shard_client import ShardClient

logger = logging.getLogger("chancy.redis")

#: Keys that the server looks at in one command: a fraction of a millisecond.
_LOOK = 500
#: Seconds between two of them, so that it takes a small part of the server's time.
_PAUSE_S = 0.002
#: Seconds for which a difference that is left is not looked into again.
_LEFT_S = 86_400
_ID_BYTES = 16


class Repair:
    """Puts the jobs of a shard back into its lists."""

    def __init__(self, client: ShardClient) -> None:
        self._client = client

    async def astray(self) -> tuple[int, int, int]:
        """How many pending, scheduled and running jobs are missing or too many in the lists."""
        pending, scheduled, running = await self._client.run("astray")
        return pending, scheduled, running

    async def turn(self) -> int:
        """Look at every record, if the lists and the counters differ; gives how many jobs were
        missing in a list.

        What differs afterwards are counters of scheduled and running jobs of which there are too
        many to be told apart in one script; a turn of another day may find fewer.

        :raises BrokerError: the server is away; a later turn begins anew.
        """
        found, left = await self.astray(), f"{self._client.tag}:astray"
        if not any(found) or await self._client.command("GET", left) == _text(found):
            return 0
        restored = await self._look_at_all()
        await self._client.run("level")
        rest = await self.astray()
        await self._client.command("SET", left, _text(rest), "EX", _LEFT_S)
        logger.warning(
            "redis_restored jobs=%d pending=%d scheduled=%d running=%d", restored, *found
        )
        return restored

    async def _look_at_all(self) -> int:
        prefix, cursor, restored = f"{self._client.tag}:j:".encode(), b"0", 0
        while True:
            scan = ("SCAN", cursor, "MATCH", prefix + b"*", "COUNT", _LOOK)
            cursor, keys = await self._client.command(*scan)
            ids = [key[len(prefix) :] for key in keys if len(key) == len(prefix) + _ID_BYTES]
            while ids:
                looked, missing = await self._client.run("restore", *ids[:BATCH])
                ids = ids[looked:]
                restored += missing
            if cursor == b"0":
                return restored
            await asyncio.sleep(_PAUSE_S)


def _text(numbers: tuple[int, int, int]) -> bytes:
    return b"%d %d %d" % numbers

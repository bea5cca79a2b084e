"""Repair: jobs that have a record but are missing in the lists from which workers claim.

Every script changes records, lists and counters together. Deleting a single key, by hand or by
eviction, leaves jobs that would never run.
"""

from __future__ import annotations

import asyncio
import logging

from chancy.plugins.redis.transport.chunks import BATCH
from chancy.plugins.redis.transport.shard_client import ShardClient

logger = logging.getLogger("chancy.redis")

#: Keys that the server scans in one command: a fraction of a millisecond.
_SCAN_COUNT = 500
#: Seconds between two scans, so that they take a small part of the server's time.
_PAUSE_S = 0.002
#: Seconds for which a remaining difference is not examined again.
_LEFT_S = 86_400
_ID_BYTES = 16


class Repair:
    """Restores missing jobs of a shard in its lists."""

    def __init__(self, client: ShardClient) -> None:
        self._client = client

    async def differences(self) -> tuple[int, int, int]:
        """By how many pending, scheduled and running jobs the lists differ from the counters."""
        pending, scheduled, running = await self._client.run("astray")
        return pending, scheduled, running

    async def turn(self) -> int:
        """If the lists and counters differ, check all records; returns how many jobs were missing.

        A remaining difference is in the counters of scheduled and running jobs, if there are too
        many to recount in one script. It is examined again after a day.

        :raises BrokerError: the server is unavailable; a later turn starts again.
        """
        found, left = await self.differences(), f"{self._client.tag}:astray"
        if not any(found) or await self._client.command("GET", left) == _text(found):
            return 0
        restored = await self._restore_all()
        await self._client.run("level")
        rest = await self.differences()
        await self._client.command("SET", left, _text(rest), "EX", _LEFT_S)
        logger.warning(
            "redis_restored jobs=%d pending=%d scheduled=%d running=%d", restored, *found
        )
        return restored

    async def _restore_all(self) -> int:
        prefix, cursor, restored = f"{self._client.tag}:j:".encode(), b"0", 0
        while True:
            scan = ("SCAN", cursor, "MATCH", prefix + b"*", "COUNT", _SCAN_COUNT)
            cursor, keys = await self._client.command(*scan)
            ids = [key[len(prefix) :] for key in keys if len(key) == len(prefix) + _ID_BYTES]
            while ids:
                checked, missing = await self._client.run("restore", *ids[:BATCH])
                ids = ids[checked:]
                restored += missing
            if cursor == b"0":
                return restored
            await asyncio.sleep(_PAUSE_S)


def _text(numbers: tuple[int, int, int]) -> bytes:
    return b"%d %d %d" % numbers

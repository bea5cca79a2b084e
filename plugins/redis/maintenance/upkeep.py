"""Upkeep: removing expired jobs, recounting the others, reporting unreadable records."""

from __future__ import annotations

import asyncio
import logging
import random

from chancy.clock import Backoff
from chancy.errors import BrokerError, StatementFailed
from chancy.plugins.redis.maintenance.unreadable import UnreadableRecords
from chancy.plugins.redis.transport.shard import ShardClient

logger = logging.getLogger("chancy.redis")

#: Seconds between two turns of all workers together; each worker tries about as often.
_EVERY_S = 30.0
#: Jobs per script, and scripts per turn; the rest waits for the next turn.
_BATCH, _MOST_BATCHES = 128, 800


def facts(answer: bytes) -> dict[str, str]:
    """The fields of a reply to ``INFO`` or ``CLUSTER INFO``."""
    pairs = (line.partition(":")[::2] for line in answer.decode(errors="replace").splitlines())
    return {name: value.strip() for name, value in pairs}


def risks(info: bytes) -> list[str]:
    """Settings in a reply to ``INFO`` that can lose pushed jobs, each with its fix."""
    fields = facts(info)
    found: list[str] = []
    policy = fields.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and fields.get("maxmemory", "0") != "0":
        found.append(
            f"maxmemory_policy={policy}: the server silently drops jobs when it is full; set "
            "maxmemory-policy noeviction"
        )
    if fields.get("aof_enabled") == "0":
        found.append(
            "appendonly=no: a crash of the server loses everything pushed since the last snapshot; "
            "set appendonly yes"
        )
    if fields.get("role") == "slave":
        found.append("role=replica: the server is read-only; use the primary, or its service")
    return found


class Upkeep:
    """The upkeep loop, which runs in every worker; an expiring key selects one for each turn."""

    def __init__(self, client: ShardClient) -> None:
        self._client = client
        self._unreadable = UnreadableRecords(client)
        self._checked = False

    async def serve(self) -> None:
        """Run until cancelled."""
        backoff = Backoff(base_s=1.0, cap_s=_EVERY_S)
        while True:
            try:
                await self._client.open()
                await self._check_once()
                removed = await self.turn()
            except BrokerError as error:
                pause_s = backoff.next_s()
                logger.warning("upkeep_postponed next_try_s=%.1f error=%s", pause_s, error)
            else:
                backoff.reset()
                pause_s = _EVERY_S * random.uniform(0.8, 1.2)
                if removed:
                    logger.info("redis_trimmed jobs=%d", removed)
            await asyncio.sleep(pause_s)

    async def _check_once(self) -> None:
        """Log settings of the server that can lose jobs, once per process."""
        if self._checked:
            return
        try:
            found = risks(await self._client.command("INFO", "ALL"))
        except StatementFailed as error:
            # Hosted servers, and users without @dangerous: the upkeep itself does not need it.
            logger.info("redis_settings_unknown error=%s", error)
        else:
            for risk in found:
                logger.warning("redis_may_lose_jobs %s", risk)
        self._checked = True

    async def turn(self) -> int:
        """Remove expired jobs and correct the counters, unless another worker has just done so.

        :returns: how many jobs were removed.
        """
        if not await self._client.run("upkeep", round(_EVERY_S * 500)):
            return 0
        settings, removed = self._client.settings, 0
        for name, age_s in (
            (":done", settings.keep_finished_s),
            (":dead", settings.keep_failed_s),
        ):
            for _ in range(_MOST_BATCHES):
                count: int = await self._client.run("trim", name, age_s, _BATCH)
                removed += count
                if count < _BATCH:
                    break
                await asyncio.sleep(0)
        await self._unreadable.turn()
        # A damaged record that was deleted, or a list, is still counted.
        await self._client.run("level")
        return removed

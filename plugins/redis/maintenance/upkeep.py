"""What nobody does by the way: what is old is forgotten, and what is missing put back."""

from __future__ import annotations

import asyncio
import logging
import random

from chancy.clock import Backoff
from chancy.errors import BrokerError
from chancy.plugins.redis.maintenance.repair import Repair
from chancy.plugins.redis.transport.shard_client import ShardClient

logger = logging.getLogger("chancy.redis")

#: Seconds between two turns, of all workers together; each asks for the turn about as often.
_EVERY_S = 30.0
#: Jobs of one script, and scripts of one turn: more wait for the next.
_BATCH, _MOST_BATCHES = 128, 800


def facts(answer: bytes) -> dict[str, str]:
    """What an answer to ``INFO`` or ``CLUSTER INFO`` says, by name."""
    pairs = (line.partition(":")[::2] for line in answer.decode(errors="replace").splitlines())
    return {name: value.strip() for name, value in pairs}


def risks(info: bytes) -> list[str]:
    """What in the answer to ``INFO`` may cost jobs that were pushed."""
    told = facts(info)
    found: list[str] = []
    policy = told.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and told.get("maxmemory", "0") != "0":
        found.append(
            f"maxmemory_policy={policy}: when it is full it drops jobs in silence; set "
            "maxmemory-policy noeviction"
        )
    if told.get("aof_enabled") == "0":
        found.append(
            "appendonly=no: what was pushed since its last snapshot is lost with the server; set "
            "appendonly yes"
        )
    if told.get("role") == "slave":
        found.append("role=replica: it takes no jobs; name the primary, or its service")
    return found


class Upkeep:
    """Every worker does it; a key that lapses says whose turn it is."""

    def __init__(self, client: ShardClient) -> None:
        self._client = client
        self._restoration = Repair(client)
        self._looked = False

    async def serve(self) -> None:
        """Go on until cancelled."""
        backoff = Backoff(base_s=1.0, cap_s=_EVERY_S)
        while True:
            try:
                await self._client.open()
                await self._look_once()
                forgotten = await self.turn()
            except BrokerError as error:
                pause_s = backoff.next_s()
                logger.warning("upkeep_postponed next_try_s=%.1f error=%s", pause_s, error)
            else:
                backoff.reset()
                pause_s = _EVERY_S * random.uniform(0.8, 1.2)
                if forgotten:
                    logger.info("redis_trimmed jobs=%d", forgotten)
            await asyncio.sleep(pause_s)

    async def _look_once(self) -> None:
        """Say what of the server's configuration may cost jobs."""
        if not self._looked:
            for what in risks(await self._client.command("INFO", "ALL")):
                logger.warning("redis_may_lose_jobs %s", what)
            self._looked = True

    async def turn(self) -> int:
        """Forget what is too old, and put back what is missing, unless somebody did it a moment
        ago; returns how many were forgotten."""
        lapses_ms = round(_EVERY_S * 500)
        mine = await self._client.command(
            "SET", f"{self._client.tag}:upkeep", "", "NX", "PX", lapses_ms
        )
        if not mine:
            return 0
        settings, forgotten = self._client.settings, 0
        for name, age_s in (
            (":done", settings.keep_finished_s),
            (":dead", settings.keep_failed_s),
        ):
            for _ in range(_MOST_BATCHES):
                some: int = await self._client.run("trim", name, age_s, _BATCH)
                forgotten += some
                if some < _BATCH:
                    break
                await asyncio.sleep(0)
        await self._restoration.turn()
        return forgotten

"""The server of services dies, and its replica takes over, with or without its last words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.plugins.redis.jobs.test_durability_chaos import follow, in_step, promote
from tests.plugins.redis.services.shop import Shop, shop
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

Own = Callable[..., RedisServer]


@dataclass
class Pair:
    """A primary, its replica, and an address that leads to one of them."""

    primary: RedisServer
    replica: RedisServer
    proxy: Proxy
    place: Shop

    async def follow(self) -> None:
        """Have the replica take over all that there is by now."""
        follow(self.replica, self.primary.port)
        await eventually(lambda: in_step(self.replica, self.primary))

    async def fail_over(self) -> None:
        self.primary.kill()
        await self.promote()

    async def promote(self) -> None:
        promote(self.replica)
        self.proxy.target = ("127.0.0.1", self.replica.port)
        await asyncio.to_thread(self.proxy.cut)


@asynccontextmanager
async def pair(own_redis: Own) -> AsyncGenerator[Pair]:
    primary, replica = (own_redis(repl_diskless_sync_delay="0") for _ in range(2))
    with (
        Proxy("127.0.0.1", primary.port) as proxy,
        shop(f"redis://127.0.0.1:{proxy.port}/0", cluster=False) as place,
    ):
        yield Pair(primary, replica, proxy, place)


async def test_running_services_obey_commands_after_a_failover(own_redis: Own) -> None:
    async with pair(own_redis) as servers:
        place = servers.place
        id = await place.services.start("beat")
        async with place.worker():
            await eventually(lambda: place.has_ticked(id))
            await servers.follow()
            await servers.fail_over()
            ticks = len(place.ticks(id))
            await eventually(lambda: len(place.ticks(id)) > ticks + 3)
            assert place.notes(f"course:{id}") == ["begin"], "the same instance"
            assert await place.services.stop(id) == "RUNNING"
            await eventually(place.is_state(id, "STOPPED"))
            assert place.notes(f"course:{id}") == ["begin", "end"]


async def test_jobs_unknown_to_a_new_primary_run_on_one_worker(
    own_redis: Own,
) -> None:
    """It was taken after the last word to the replica, where it waits."""
    async with pair(own_redis) as servers:
        place = servers.place
        id = await place.services.start("beat")
        await servers.follow()
        promote(servers.replica)
        async with place.worker(place.declare(lease_s=5.0)):
            await eventually(lambda: place.has_ticked(id))
            await servers.fail_over()
            # By the same worker: it is given what it runs, or has lost it before.
            await eventually(lambda: place.notes(f"course:{id}")[-2:] == ["end", "begin"])
            ticks = len(place.ticks(id))
            await eventually(lambda: len(place.ticks(id)) > ticks + 3)
            await place.services.stop(id)
            await eventually(place.is_state(id, "STOPPED"), timeout=10)
            assert place.notes(f"course:{id}") == ["end", "begin", "end"]

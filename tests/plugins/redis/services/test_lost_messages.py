"""Services whose words, and whose own clients, do not reach Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import pytest
from redis import Redis

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.services import BlockingContext, Context, Service
from tests.plugins.redis.services.shop import LEASE_S, Shop, declare, note, shop
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

Own = Callable[..., RedisServer]


def _is_begun_anew(place: Shop, id: str) -> bool:
    """On a busy machine, whose lease ends once more, more than once."""
    return place.notes(f"course:{id}")[:2] == ["begin"] * 2 and place.is_begun(id)


class Chatty(Service):
    """Ends as soon as it cannot be heard."""

    name = "chatty"

    async def start(self, ctx: Context) -> None:
        note(f"course:{ctx.id}", "begin")
        while not await ctx.wait(0.01):
            await ctx.emit("on")


class Talker(Service):
    """Always has something to say, and is not interrupted before its time."""

    name = "talker"

    async def start(self, ctx: Context) -> None:
        self.id = ctx.id
        note(f"course:{ctx.id}", "begin")
        while not ctx.stopping:
            with suppress(BrokerUnavailable):
                await ctx.emit("on")

    async def stop(self) -> None:
        note(f"course:{self.id}", "stop")


async def test_shutdown_does_not_wait_for_unresponsive_peers(own_redis: Own) -> None:
    """Each service waits for seconds for the answer to its event: more of them than may at once."""
    server = own_redis()
    with (
        shop(server.url, cluster=False) as place,
        Proxy("127.0.0.1", server.port) as proxy,
    ):
        worker = declare(f"redis://127.0.0.1:{proxy.port}/0", lease_s=60.0)
        worker.service(Talker)
        ids = [await place.services.start("talker") for _ in range(16)]
        async with place.worker(worker):
            for id in ids:
                await eventually(partial(place.is_course, id, ["begin"]))
            proxy.black_hole()
            # Calls on their way are to be in the black hole.
            await asyncio.sleep(0.1)
            ending = asyncio.create_task(_heal_later(proxy, place, ids))
        assert await ending < 3.0


async def _heal_later(proxy: Proxy, place: Shop, ids: list[str]) -> float:
    """Seconds until all were told to stop."""
    began = time.monotonic()
    try:
        for id in ids:
            await eventually(partial(place.is_course, id, ["begin", "stop"]))
        return time.monotonic() - began
    finally:
        proxy.heal()


def test_more_threads_command_at_once_than_there_are_connections(alone: Shop) -> None:
    store = alone.services.blocking
    with ThreadPoolExecutor(150) as threads:
        ids = list(threads.map(lambda number: store.start("give", value=number), range(600)))
    assert sorted(alone.waiting) == sorted(ids)


class Reader(Service):
    """Ends as soon as its own client cannot be heard."""

    name = "reader"
    url = ""

    def start(self, ctx: BlockingContext) -> None:
        note(f"course:{ctx.id}", "begin")
        with Redis.from_url(Reader.url, retry=None) as client:
            while not ctx.wait(0.01):
                client.ping()


@pytest.mark.chaos
@pytest.mark.row("P36")
async def test_services_failed_by_an_outage_of_redis_restart_afterwards(own_redis: Own) -> None:
    server = own_redis(appendonly="yes", appendfsync="always")
    Reader.url = server.url
    seen: list[BaseException] = []
    with shop(server.url, cluster=False) as place:
        worker = place.declare(lease_s=LEASE_S)
        worker.service(Chatty)
        worker.service(Reader)
        worker.on_exception(seen.append)
        ids = [await place.services.start(kind) for kind in ("chatty", "reader")]
        async with place.worker(worker):
            for id in ids:
                await eventually(partial(place.is_course, id, ["begin"]))
            server.kill()
            # For many of their words, each 10 ms.
            await asyncio.sleep(0.3)
            server.start()
            for id in ids:
                await eventually(partial(_is_begun_anew, place, id))
            assert seen == []

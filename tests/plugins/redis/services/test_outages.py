"""Redis is unavailable, slow, empty or replaced, for all workers or for one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.plugins.redis.services import BlockingContext, Context, Service, Services
from tests.plugins.redis.jobs.test_durability_chaos import follow, in_step, promote
from tests.plugins.redis.services.member import member
from tests.plugins.redis.services.shop import LEASE_S, Shop, declare, note, shop
from tests.support.proxy import Proxy
from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

Own = Callable[..., RedisServer]


@pytest.mark.chaos
@pytest.mark.row("P15", "P33", "P36")
async def test_a_worker_stops_all_while_redis_is_unavailable_and_continues(
    own_redis: Own, tmp_path: Path
) -> None:
    server = own_redis(appendonly="yes", appendfsync="always")
    file = tmp_path / "ticks"
    with (
        shop(server.url, cluster=False) as place,
        # A fifth of it is left for stopping, also on a busy machine.
        member(server.url, local="beat", lease_s=5.0) as process,
    ):
        (local,) = await eventually(lambda: place.raw.smembers(place.services.keys.known))
        local = local.decode()
        id = await place.services.start("beat", file=str(file))
        await eventually(lambda: len(place.ticks(id)) > 3 and len(place.ticks(local)) > 3)

        server.stop()
        gone = time.time()
        # Until then its services run and use the processor.
        await eventually(lambda: time.time() - _last(file) > 1.0)
        assert _last(file) - gone < 5.0
        spent = _cpu_s(process.pid)
        # The processor time is measured over an interval.
        await asyncio.sleep(1.0)
        spent = _cpu_s(process.pid) - spent
        assert spent < 0.05, f"{spent:.2f} s of the processor"
        before = len(file.read_text())
        server.start()
        back = time.time()
        await eventually(lambda: len(file.read_text()) > before)
        await eventually(lambda: any(at > back for _, at in place.ticks(local)))
        assert {pid for pid, _ in [*place.ticks(id), *place.ticks(local)]} == {process.pid}

        # The exception handlers are still called.
        place.services.blocking.begin("give", {"raise": "oh"})
        for name in ("exceptions", "exceptions too"):
            await eventually(partial(_is_noted, place, name, "ValueError('oh')"))
        process.terminate()
        assert await asyncio.to_thread(process.wait, 10) == 0
        assert await place.state(id) == "WAIT"
        assert await place.services.get(local) is None


@pytest.mark.chaos
@pytest.mark.row("P37")
async def test_a_worker_that_is_cut_off_stops_before_another_begins(
    apart: Shop, proxy: Proxy
) -> None:
    id = await apart.services.start("beat")
    # A second and a half of it is left for stopping, also on a busy machine.
    cut_off = declare(f"redis://127.0.0.1:{proxy.port}/0", lease_s=7.5)
    async with apart.worker(cut_off):
        await eventually(lambda: len(apart.ticks(id)) > 3)
        proxy.black_hole()
        async with apart.worker():
            await eventually(lambda: apart.notes(f"course:{id}") == ["begin", "end", "begin"])
            proxy.heal()
            # The time in which the worker that was cut off would run it, too.
            await asyncio.sleep(LEASE_S / 2)
            assert apart.notes(f"course:{id}") == ["begin", "end", "begin"]


@pytest.mark.row("P23")
async def test_a_command_reaches_a_worker_that_could_not_be_reached(
    apart: Shop, proxy: Proxy
) -> None:
    id = await apart.services.start("beat")
    async with apart.worker(declare(f"redis://127.0.0.1:{proxy.port}/0", lease_s=150.0)):
        await eventually(lambda: len(apart.ticks(id)) > 3)
        proxy.refuse()
        proxy.cut()
        await apart.services.stop(id)
        # The command would arrive in this time if the worker could be reached.
        await asyncio.sleep(0.5)
        assert await apart.state(id) == "RUNNING"
        proxy.heal()
        # By the first call that reaches Redis; the next renewal would be in half a minute.
        await eventually(apart.is_state(id, "STOPPED"), timeout=20)
        assert apart.notes(f"course:{id}") == ["begin", "end"]


@pytest.mark.row("P23")
async def test_a_command_is_obeyed_in_milliseconds(apart: Shop) -> None:
    ids = [await apart.services.start("beat") for _ in range(5)]
    async with apart.worker(apart.declare(lease_s=60.0)):
        took: list[float] = []
        for id in ids:
            await eventually(partial(apart.has_ticked, id))
            asked = time.monotonic()
            await apart.services.stop(id)
            await eventually(apart.is_state(id, "STOPPED"))
            took.append(time.monotonic() - asked)
        # A busy machine delays some, but not all. The next renewal is seconds away.
        assert min(took) < 0.5
        assert sorted(took)[2] < 5.0


async def test_a_worker_whose_data_are_gone_stops_what_it_runs(
    apart: Shop, server: RedisServer
) -> None:
    id = await apart.services.start("beat")
    async with apart.worker(apart.declare(lease_s=8.0)):
        await eventually(lambda: len(apart.ticks(id)) > 3)
        server.flush()
        await eventually(lambda: apart.notes(f"course:{id}") == ["end"])
        # The worker continues.
        await apart.services.start("beat", id=id)
        await eventually(lambda: apart.notes(f"course:{id}") == ["end", "begin"])


@pytest.mark.chaos
@pytest.mark.parametrize("replicas", [0, 1])
async def test_running_services_continue_on_a_full_server(
    own_redis: Own, replicas: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = own_redis(
        maxmemory="12mb", maxmemory_policy="noeviction", repl_diskless_sync_delay="0"
    )
    for replica in [own_redis() for _ in range(replicas)]:
        follow(replica, server.port)
        await eventually(partial(in_step, replica, server))
    with shop(server.url, cluster=False) as place:
        place.services.configure(replicas=replicas)
        ids = [await place.services.start(kind, s=1) for kind in ("beat", "nap", "beat")]
        async with place.worker(place.declare(replicas=replicas)):
            for id in ids:
                await eventually(partial(place.is_begun, id))
            for size in (100_000, 1_000, 10):
                _fill(place.raw, size)
            with pytest.raises(StatementFailed, match="Redis is full"):
                _start_many(place.services)
            for id in (ids[0], ids[2]):
                await eventually(partial(_is_renewed, place, id, _lease(place, id)))
            await eventually(place.is_state(ids[1], None))
            # There may be room again: the service that has ended took some.
            place.raw.config_set("maxmemory", 1)
            key = place.services.keys.of(ids[2])
            token = place.raw.hget(key, "token")
            assert await place.services.restart(ids[2]) == "RUNNING"
            await eventually(lambda: place.raw.hget(key, "token") not in {None, token})
            await place.services.stop(ids[0])
            await eventually(place.is_state(ids[0], "STOPPED"))
        # The worker would stop its services.
        assert "service_leases_not_renewed" not in caplog.text
        assert await place.state(ids[2]) == "WAIT"


async def test_an_end_that_is_refused_for_a_while_is_reported_again(
    apart: Shop, server: RedisServer
) -> None:
    """As a primary with `min-replicas-to-write` that has lost its replicas."""
    with closing(server.client()) as other:
        id = await apart.services.start("nap", cleanup=False, s=0.3)
        # No lease ends before.
        async with apart.worker(apart.declare(lease_s=60.0)):
            await eventually(partial(apart.is_begun, id))
            command_sync(other, "CONFIG", "SET", "min-replicas-to-write", 1)
            # The time in which it would end. Redis 6 accepts the writes of scripts anyway.
            await asyncio.sleep(0.6)
            command_sync(other, "CONFIG", "SET", "min-replicas-to-write", 0)
            await eventually(apart.is_state(id, "SUCCESS"))


def _lease(place: Shop, id: str) -> float:
    """The end of the lease in milliseconds; 0 if no worker has it."""
    return float(place.raw.zscore(place.services.keys.leases, id) or 0)


def _is_renewed(place: Shop, id: str, since: float) -> bool:
    return _lease(place, id) > since


def _is_noted(place: Shop, name: str, text: str) -> bool:
    return text in place.notes(name)


def _last(file: Path) -> float:
    """The time of the last complete tick of the service."""
    return float(file.read_text().splitlines()[-2])


def _cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def _start_many(services: Services) -> None:
    """Fill the server again: its own memory use varies, so there may be room for some data."""
    for number in range(10_000):
        services.blocking.start("nobody", text="x" * 100, number=number)


def _fill(raw: Any, size: int) -> None:
    """Fill the server until no value of this size fits."""
    with suppress(OutOfMemoryError):
        for number in count():
            raw.set(f"fill:{size}:{number}", "x" * size)


@dataclass
class Pair:
    """A primary, its replica, and an address that leads to one of them."""

    primary: RedisServer
    replica: RedisServer
    proxy: Proxy
    place: Shop

    async def follow(self) -> None:
        """Promote the replica after it has received all writes."""
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
        async with place.worker(place.declare(lease_s=10.0)):
            await eventually(lambda: place.has_ticked(id))
            await servers.follow()
            servers.primary.kill()
            # One of the five renewals of each lease fails meanwhile.
            await asyncio.sleep(2.2)
            await servers.promote()
            ticks = len(place.ticks(id))
            await eventually(lambda: len(place.ticks(id)) > ticks + 3)
            assert place.notes(f"course:{id}") == ["begin"], "the same instance"
            assert await place.services.stop(id) == "RUNNING"
            await eventually(place.is_state(id, "STOPPED"))
            assert place.notes(f"course:{id}") == ["begin", "end"]


async def test_jobs_unknown_to_a_new_primary_run_on_one_worker(
    own_redis: Own,
) -> None:
    """It was claimed after the last write that the replica received, so it is queued there."""
    async with pair(own_redis) as servers:
        place = servers.place
        id = await place.services.start("beat")
        await servers.follow()
        promote(servers.replica)
        async with place.worker(place.declare(lease_s=8.0)):
            await eventually(lambda: place.has_ticked(id))
            await servers.fail_over()
            # By the same worker: it claims what it runs already, or has lost it before.
            await eventually(lambda: place.notes(f"course:{id}")[-2:] == ["end", "begin"])
            ticks = len(place.ticks(id))
            await eventually(lambda: len(place.ticks(id)) > ticks + 3)
            await place.services.stop(id)
            await eventually(place.is_state(id, "STOPPED"))
            assert place.notes(f"course:{id}") == ["end", "begin", "end"]


def _is_begun_anew(place: Shop, id: str) -> bool:
    """More than once if the lease ends again, as on a busy machine."""
    return place.notes(f"course:{id}")[:2] == ["begin"] * 2 and place.is_begun(id)


class Chatty(Service):
    """Ends as soon as it cannot publish an event."""

    name = "chatty"

    async def start(self, ctx: Context) -> None:
        note(f"course:{ctx.id}", "begin")
        while not await ctx.wait(0.01):
            await ctx.emit("on")


class Talker(Service):
    """Publishes events all the time, and has a grace period."""

    name = "talker"

    async def start(self, ctx: Context) -> None:
        self.id = ctx.id
        note(f"course:{ctx.id}", "begin")
        while not ctx.stopping:
            with suppress(BrokerUnavailable):
                await ctx.emit("on")

    async def stop(self) -> None:
        note(f"course:{self.id}", "stop")


async def test_shutdown_does_not_wait_for_unresponsive_peers(apart: Shop, proxy: Proxy) -> None:
    """More services wait for replies to their events than there are threads for events."""
    worker = declare(f"redis://127.0.0.1:{proxy.port}/0", lease_s=60.0, grace_s=30.0)
    worker.service(Talker)
    ids = [await apart.services.start("talker") for _ in range(16)]
    async with apart.worker(worker):
        for id in ids:
            await eventually(partial(apart.is_course, id, ["begin"]))
        proxy.black_hole()
        # The calls in flight must be lost, too.
        await asyncio.sleep(0.1)
        ending = asyncio.create_task(_heal_later(proxy, apart, ids))
    assert await ending < 9.0, "less than the timeout of a call"


async def _heal_later(proxy: Proxy, place: Shop, ids: list[str]) -> float:
    """Seconds until all services were asked to stop."""
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
    """Ends as soon as its own client cannot reach the server."""

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
            # The time of many events, one each 10 ms.
            await asyncio.sleep(0.3)
            server.start()
            for id in ids:
                await eventually(partial(_is_begun_anew, place, id))
            assert seen == []

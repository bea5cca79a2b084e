"""Jobs, streams and services of one client, on a primary with replicas."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.sentinel import Sentinel

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.plugins.redis.services import Services
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import Value
from chancy.testing.conformance.bench import Bench, prepared
from tests.plugins.redis.jobs.test_durability_chaos import follow, in_step
from tests.plugins.redis.streams.fleet import Order
from tests.support.ports import free_port
from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisServer, until
from tests.support.waiting import eventually

Start = Callable[..., RedisServer]
#: A quarter of it is for a Sentinel.
PATIENCE_S = 40.0


@dataclass
class All:
    """One of each, with the same client."""

    broker: RedisBroker
    orders: Stream[Order]
    services: Services

    def calls(self) -> list[Callable[[], Awaitable[object]]]:
        """Pushes of one job, two different and many alike ones; a record, records, a service."""
        push, send = self.broker.push, self.orders.send
        one, two = [prepared()], [prepared(), prepared(delay_s=60.0)]
        alike = [prepared() for _ in range(300)]
        some = [Order(key=key, seq=0) for key in range(8)]
        return [
            lambda: push(one),
            lambda: push(two),
            lambda: push(alike),
            lambda: send(some[0]),
            lambda: send(*some),
            lambda: self.services.start("beat", id="a"),
        ]


@asynccontextmanager
async def all_of(settings: RedisSettings) -> AsyncGenerator[All]:
    client = RedisClient(settings)
    broker, services = RedisBroker(settings, redis=client), Services(client)
    services.configure(replicas=settings.replicas)
    orders = Streams(client).stream("orders", record=Order, partition_by="key", partitions=2)
    bench = Bench(broker)
    for begin in (broker.open, bench.prepare):
        await eventually(partial(_answers, begin))
    try:
        yield All(broker, orders, services)
    finally:
        await broker.close()
        services.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no call wait for replicas for longer than it must."""
    monkeypatch.setattr("chancy.plugins.redis.jobs.push.PATIENCE_S", 0.05)
    monkeypatch.setattr("chancy.plugins.redis.services.service_link._LASTING_S", 0.4)


@pytest.mark.row("P41")
@pytest.mark.usefixtures("impatient")
async def test_calls_that_too_few_replicas_have_received_raise(own_redis: Start) -> None:
    """They may be durable all the same."""
    primary = own_redis(repl_diskless_sync_delay="0")
    async with all_of(RedisSettings(url=primary.url, timeout_s=0.4, replicas=1)) as made:
        for call in made.calls():
            await eventually(partial(_lacks_replicas, call))
        replica = own_redis()
        follow(replica, primary.port)
        await eventually(lambda: in_step(replica, primary))
        for call in made.calls():
            await eventually(partial(_answers, call))


@pytest.mark.row("P41")
@pytest.mark.usefixtures("impatient")
async def test_replicas_are_waited_for_in_a_cluster(redis_cluster: str) -> None:
    settings = RedisSettings(url=redis_cluster, cluster=True, timeout_s=0.4, replicas=1)
    async with all_of(settings) as made:
        for call in made.calls():
            await eventually(partial(_lacks_replicas, call))


async def test_a_full_server_makes_no_refusal_of_what_a_replica_has(own_redis: Start) -> None:
    """It appends an event in place of one that it drops."""
    primary, replica = (own_redis(repl_diskless_sync_delay="0") for _ in range(2))
    follow(replica, primary.port)
    await eventually(lambda: in_step(replica, primary))
    link = RedisClient(RedisSettings(url=primary.url))
    fields: list[Value] = [1, "drop_oldest", "count", 0, 2, 1, "a", 1]
    for most in (0, 1):
        await link.command("CONFIG", "SET", "maxmemory", most)
        assert await link.run("streams.send", ("log", "stat"), fields, replicas=1) == 1
    replica.freeze()
    # This script writes nothing, but the replica may still lack what was written before.
    with pytest.raises(BrokerUnavailable):
        await link.run("streams.extend", ("own",), ("me", 1, 1), replicas=1, timeout_s=1.0)
    await link.close()


@contextmanager
def sentinel(
    primary: RedisServer, folder: Path, *, replicas: int = 1, down_after_ms: int = 500
) -> Generator[int]:
    """One that knows the primary and its replicas; gives its port."""
    port, config = free_port(), folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\nlogfile {folder / 'log'}\n"
        f"sentinel monitor shop 127.0.0.1 {primary.port} 1\n"
        f"sentinel down-after-milliseconds shop {down_after_ms}\n"
        "sentinel failover-timeout shop 2000\n"
    )
    process = subprocess.Popen([primary.binary, str(config), "--sentinel"])
    try:
        until(lambda: _knows(port, replicas), "Sentinel knows no replica", lambda: "")
        yield port
    finally:
        process.kill()
        process.wait()


def soon(port: int) -> None:
    """Have Sentinel promote a replica half a second after the primary was last seen."""
    with closing(redis.Redis(port=port, protocol=2)) as client:
        command_sync(client, "SENTINEL", "SET", "shop", "down-after-milliseconds", 500)


def _knows(port: int, replicas: int) -> bool:
    """Whether Sentinel knows the primary and its replicas."""
    try:
        with closing(redis.Redis(port=port, protocol=2)) as client:
            found: Any = command_sync(client, "SENTINEL", "REPLICAS", "shop")
            return len(found) == replicas and b"s_down" not in str(found).encode()
    except redis.ConnectionError:
        return False


@pytest.mark.row("P41")
async def test_all_follow_the_primary_that_sentinel_names(own_redis: Start, tmp_path: Path) -> None:
    primary, replica = (own_redis(repl_diskless_sync_delay="0") for _ in range(2))
    follow(replica, primary.port)
    # Not before the primary is killed, however long it stands still.
    with sentinel(primary, tmp_path, down_after_ms=60_000) as port:
        url = f"redis://127.0.0.1:{free_port()},127.0.0.1:{port}/0"
        settings = RedisSettings(url=url, sentinel="shop", connect_timeout_s=PATIENCE_S)
        async with all_of(settings) as made:
            calls = made.calls()
            for call in calls:
                await call()
            await eventually(lambda: in_step(replica, primary))
            primary.kill()
            soon(port)
            for call in calls:
                # A Sentinel that stood still for two seconds decides nothing for half a minute.
                await eventually(partial(_answers, call), timeout=80)
            counts = (await made.broker.counts())["default"]
            assert (counts.pending, counts.scheduled) == (302, 1), "each was there, once"
        # A refused script would cost a second call, in each of the many that wait by then.
        assert b"NOSCRIPT" not in replica.ask("INFO errorstats")
        sentinel_of: Any = Sentinel
        with closing(sentinel_of([("127.0.0.1", port)]).master_for("shop")) as client:
            services = Services(client)
            assert (await services.list()).new == ["a"]
            services.close()


async def test_connections_that_are_opened_at_once_ask_sentinel_once(
    own_redis: Start, tmp_path: Path
) -> None:
    with sentinel(own_redis(), tmp_path, replicas=0) as port:
        url = f"redis://127.0.0.1:{port}/0"
        settings = RedisSettings(url=url, sentinel="shop", connect_timeout_s=PATIENCE_S)
        client = RedisClient(settings)
        with closing(redis.Redis(port=port, protocol=2)) as asked:

            def connections() -> int:
                told: Any = command_sync(asked, "INFO", "stats")
                return int(told["total_connections_received"])

            before = connections()
            # As the pushes that a replica has to receive do: each has a connection of its own.
            wires = await asyncio.gather(*(client.wire("jobs", print) for _ in range(40)))
            assert connections() == before + 1
        for wire in wires:
            assert await wire.command(("PING",), 30) == b"PONG"
            wire.close()
        await client.close()


async def test_a_sentinel_that_names_a_dead_primary_does_not_hide_the_others(
    own_redis: Start, tmp_path: Path
) -> None:
    """It is cut off from the others, which have agreed on another primary."""
    former, primary = own_redis(), own_redis()
    folders = [tmp_path / name for name in ("stale", "current")]
    for folder in folders:
        folder.mkdir()
    with (
        sentinel(former, folders[0], replicas=0) as stale,
        sentinel(primary, folders[1], replicas=0) as current,
    ):
        former.kill()
        url = f"redis://127.0.0.1:{stale},127.0.0.1:{current}/0"
        settings = RedisSettings(url=url, sentinel="shop", connect_timeout_s=PATIENCE_S)
        broker = RedisBroker(settings)
        with pytest.raises(BrokerUnavailable):
            await broker.open()
        await broker.open()
        assert (await broker.client.command("ROLE"))[0] == b"master"
        await broker.close()


async def _lacks_replicas(call: Callable[[], Awaitable[object]]) -> bool:
    """Whether the call says so. It fails in any case, on a busy machine without an answer."""
    with pytest.raises(BrokerUnavailable) as raised:
        await call()
    return "0 of 1 replicas" in str(raised.value)


async def _answers(call: Callable[[], Awaitable[object]]) -> bool:
    try:
        await call()
    except BrokerUnavailable:
        return False
    return True

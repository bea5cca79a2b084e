"""A Redis primary dies under load, and Sentinel or the cluster promotes its replica."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

from chancy import Chancy, Queue, Worker
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.redis.keys import shard_tag
from tests.faults import fleet as fleets
from tests.faults.book import Book
from tests.faults.test_failover import BEHIND_S, JOBS_PER_S, LOAD_S, MARGIN_S, Pushes, began_after
from tests.plugins.redis.jobs.test_durability_chaos import follow, in_step
from tests.plugins.redis.streams.shards import Shards, tell
from tests.plugins.redis.test_replicated import sentinel
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisClusterServers, RedisServer, cluster_nodes
from tests.support.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

QUEUE = Queue("load", executor="async", broker="redis", concurrency=32)
HERE = "127.0.0.1"


@dataclass
class Pair:
    """A primary, the replica that takes its place, and how clients find them."""

    primary: RedisServer
    replica: RedisServer
    settings: dict[str, Any]
    #: The line between them, where it can be cut.
    between: Proxy | None = None

    def led(self) -> bool:
        try:
            return bool(tell(self.replica, "ROLE")[0] == b"master")
        except redis.ConnectionError:  # Sentinel closes all connections of a new primary
            return False

    def fail(self, how: str) -> None:
        """Kill or freeze the primary; a frozen one keeps its connections."""
        if how == "frozen":
            self.primary.freeze()
            return
        self.primary.kill()
        if self.between is not None:
            self.between.refuse()
            self.between.cut()

    def bring_back(self, how: str) -> None:
        """Start or thaw the former primary, which becomes a replica."""
        if how == "frozen":
            self.primary.thaw()
        else:
            self.primary.start()


def watched(stack: ExitStack, folder: Path) -> Pair:
    """Two servers that Sentinel watches."""
    servers = [RedisServer({"repl-diskless-sync-delay": "0"}) for _ in range(2)]
    for server in servers:
        stack.callback(server.close)
        server.start()
    between = stack.enter_context(Proxy(HERE, servers[0].port))
    follow(servers[1], between.port)
    port = stack.enter_context(sentinel(servers[0], folder))
    return Pair(
        servers[0], servers[1], {"url": f"redis://{HERE}:{port}/0", "sentinel": "shop"}, between
    )


def clustered(stack: ExitStack, folder: Path) -> Pair:
    """The node of a cluster with the slot of the jobs, and its replica."""
    servers = cluster_nodes(6)
    shards = Shards(RedisClusterServers(servers[:3]), servers[3:])
    stack.callback(shards.close)
    shards.start()
    primary, replica = shards.home(shard_tag("chancy:"))
    other = next(node for node in servers[:3] if node is not primary)
    return Pair(primary, replica, {"url": other.url, "cluster": True})


PLACES: dict[str, Callable[[ExitStack, Path], Pair]] = {"sentinel": watched, "cluster": clustered}


@pytest.fixture(params=PLACES)
def pair(request: pytest.FixtureRequest, open_directory: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield PLACES[request.param](stack, open_directory)


@pytest.mark.parametrize(
    ("how", "replicas"),
    [("killed", 1), ("killed", 0), ("frozen", 1)],
    ids=["killed, waited for", "killed, not waited for", "frozen, waited for"],
)
async def test_a_replica_is_promoted_under_load(
    pair: Pair, dsn: str, book: Book, how: str, replicas: int
) -> None:
    settings = {**pair.settings, "replicas": replicas, "timeout_s": 2.0, "connect_timeout_s": 0.5}

    def application() -> Chancy:
        return Chancy(dsn, queues=[QUEUE], plugins=[RedisPlugin(**settings)], pool_size=3)

    await application().migrate()
    await eventually(lambda: in_step(pair.replica, pair.primary))
    async with AsyncExitStack() as stack:
        for _ in range(2):
            made = await stack.enter_async_context(application())
            await stack.enter_async_context(Worker(made, queues=["load"], heartbeat_timeout_s=10.0))
        chancy = await stack.enter_async_context(application())
        pushes = Pushes(chancy, book)
        pushing = asyncio.create_task(pushes.run())
        await eventually(lambda: len(pushes.acknowledged) > JOBS_PER_S * LOAD_S)
        behind_from = time.monotonic()
        if not replicas and pair.between is not None:
            pair.between.black_hole()
            await eventually(lambda: time.monotonic() > behind_from + BEHIND_S)
        dead_at = time.monotonic()
        pair.fail(how)
        await eventually(lambda: asyncio.to_thread(pair.led), timeout=60)
        promoted_at = time.monotonic()
        await eventually(lambda: began_after(book, promoted_at), timeout=60)
        again_at = began_after(book, promoted_at)
        # With no replica left, no push that waits for one is acknowledged.
        await asyncio.to_thread(pair.bring_back, how)
        await eventually(lambda: acknowledged_after(pushes, promoted_at), timeout=60)
        pushed_at = acknowledged_after(pushes, promoted_at)
        await eventually(lambda: len(pushes.acknowledged) > JOBS_PER_S * 2 * LOAD_S, timeout=60)
        pushes.over = True
        await pushing
        await eventually(lambda: drained(chancy), timeout=60)
        known = await chancy.get_jobs(list(pushes.ids.values()))
    began, ended = book.count("begin"), book.count("end")
    lost = {number for number in pushes.acknowledged if pushes.ids[number] not in known}
    twice = {number for number, count in began.items() if count > 1}
    told: dict[str, float] = {"pushed": len(pushes.acknowledged)}
    told |= {"promoted_after_s": promoted_at - dead_at, "again_after_s": again_at - dead_at}
    told |= {"pushed_after_s": pushed_at - dead_at, "lost": len(lost)}
    told |= {"never_ran": len(pushes.acknowledged.keys() - ended.keys())}
    # A job whose push is repeated after it has finished runs again.
    told |= {"repeated": len(pushes.repeated), "ran_again": len(twice & pushes.repeated)}
    fleets.tell(
        **pair.settings, how=how, replicas=replicas, **told, twice=len(twice - pushes.repeated)
    )
    if replicas:
        # A claim that the replicas have not stored is not returned.
        assert twice <= pushes.repeated
        assert lost == set()
        assert pushes.acknowledged.keys() <= ended.keys()
    # Only what was not replicated: acknowledged while the replica was behind.
    when = [pushes.acknowledged[number] for number in lost]
    assert all(behind_from - MARGIN_S < one < dead_at + MARGIN_S for one in when)


def acknowledged_after(pushes: Pushes, at: float) -> float:
    """When the first push was acknowledged after a time; 0 if none was."""
    return min((one for one in pushes.acknowledged.values() if one > at), default=0.0)


async def drained(chancy: Chancy) -> bool:
    counts = (await chancy.counts()).get("load")
    return counts is None or not sum(counts)

"""A primary of a cluster dies or freezes under services, and its replica is elected."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import redis

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.services import ServiceRuns, Services
from tests.plugins.redis.services.member import member
from tests.plugins.redis.services.shop import declare
from tests.plugins.redis.streams.shards import Shards, tell
from tests.support.redis_fixtures import RedisClusterServers, RedisServer, cluster_nodes
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos

LEASE_S = 2.0
#: Seconds until a replica is elected, in a cluster that detects dead nodes after 2 s.
ELECTED_S = 8.0


@dataclass
class Fleet:
    """Services on a cluster whose primaries have replicas; their notes are on another server."""

    shards: Shards
    services: Services
    book: Any
    notes: str
    stack: ExitStack

    def worker(self, **options: Any) -> Any:
        terms = {"cluster": True, "notes": self.notes, "lease_s": LEASE_S} | options
        url = self.shards.primaries.nodes[0].url
        return self.stack.enter_context(member(url, **terms))

    @property
    def home(self) -> tuple[RedisServer, RedisServer]:
        """The primary of the keys of the services, and its replica."""
        return self.shards.home(self.services.keys.waiting)

    def ticks(self, id: str, pid: int | None = None) -> list[tuple[int, float]]:
        lines = map(json.loads, self.book.lrange(f"ticks:{id}", 0, -1))
        return [(whose, at) for whose, at in lines if pid in (None, whose)]

    def goes_on(self, id: str, since: float) -> bool:
        return any(at > since for _, at in self.ticks(id))

    def course(self, id: str) -> list[str]:
        return [one.decode() for one in self.book.lrange(f"note:course:{id}", 0, -1)]

    async def is_state(self, id: str, state: str | None) -> bool:
        with contextlib.suppress(BrokerUnavailable):
            found = await self.services.get(id)
            return (None if found is None else found.state.value) == state
        return False

    def alone(self, id: str) -> None:
        """Assert that the first copy stopped before the next one began."""
        pids = list(dict.fromkeys(pid for pid, _ in self.ticks(id)))
        for before, after in pairwise(pids):
            last = max(at for _, at in self.ticks(id, before))
            first = min(at for _, at in self.ticks(id, after))
            assert last < first, f"{before} and {after} overlap by {last - first:.2f} s"


@pytest.fixture
def fleet(own_redis: Callable[..., RedisServer]) -> Generator[Fleet]:
    nodes = cluster_nodes(6)
    shards = Shards(RedisClusterServers(nodes[:3]), nodes[3:])
    with ExitStack() as stack:
        stack.callback(shards.close)
        shards.start()
        book = own_redis()
        # The URL may name any node: this one does not die.
        services = declare(nodes[0].url, cluster=True, lease_s=LEASE_S)
        stack.callback(services.close)
        raw = stack.enter_context(closing(redis.Redis.from_url(book.url, protocol=2)))
        yield Fleet(shards, services, raw, book.url, stack)


async def insist(command: Callable[[], Any]) -> None:
    """Repeat a command whose outcome is unknown."""

    async def done() -> bool:
        try:
            await command()
        except BrokerUnavailable:
            return False
        except ServiceRuns:
            # One of the previous attempts was executed.
            return True
        return True

    await eventually(done)


@pytest.mark.row("P42")
@pytest.mark.parametrize("lease_s", [LEASE_S, 20.0])
async def test_services_continue_after_their_primary_was_killed(
    fleet: Fleet, lease_s: float
) -> None:
    """The same copies continue if the lease outlasts the election; otherwise each starts again."""
    services = fleet.services
    services.configure(lease_s=lease_s)
    ids = [await services.start("beat") for _ in range(3)]
    for _ in range(2):
        fleet.worker(lease_s=lease_s)
    await eventually(lambda: all(len(fleet.ticks(id)) > 3 for id in ids))
    primary, replica = fleet.home
    # Wait until the replica, which is some milliseconds behind, has all writes.
    await asyncio.sleep(0.1)
    primary.kill()
    killed = time.time()
    # While there is no primary.
    await insist(lambda: services.stop(ids[0]))
    await insist(lambda: services.start("beat", id="late"))
    told = time.time()
    assert fleet.shards.leads(replica)
    assert told - killed < ELECTED_S
    await eventually(lambda: fleet.is_state(ids[0], "STOPPED"), timeout=lease_s + 3)
    await eventually(lambda: len(fleet.ticks("late")) > 3, timeout=lease_s + 3)
    for id in ids[1:]:
        await eventually(partial(fleet.goes_on, id, told), timeout=5)
        fleet.alone(id)
        if lease_s > ELECTED_S:
            assert fleet.course(id) == ["begin"], "the same instance"


@pytest.mark.row("P42", "P32")
async def test_a_frozen_primary_hands_out_nothing_that_its_replica_gave_out(
    fleet: Fleet,
) -> None:
    """With `replicas=1`, so a replica confirms each lease."""
    services = fleet.services
    services.configure(replicas=1)
    ids = [await services.start("beat") for _ in range(3)]
    owner = fleet.worker(replicas=1)
    await eventually(lambda: all(len(fleet.ticks(id)) > 3 for id in ids))
    primary, replica = fleet.home
    primary.freeze()
    with pytest.raises(BrokerUnavailable):
        await services.stop(ids[0])
    # It has no replica now, so it grants no leases and confirms no commands.
    await eventually(lambda: fleet.shards.leads(replica), timeout=ELECTED_S)
    with pytest.raises(BrokerUnavailable):
        await services.start("beat", id="late")
    last = max(at for _, at in fleet.ticks(ids[0]))
    primary.thaw()
    await eventually(lambda: _follows(primary))
    await insist(lambda: services.start("beat", id="late"))
    for id in (*ids, "late"):
        await eventually(partial(fleet.goes_on, id, last), timeout=4 * LEASE_S)
        fleet.alone(id)
        assert fleet.course(id).count("begin") - fleet.course(id).count("end") == 1
    owner.terminate()
    assert await asyncio.to_thread(owner.wait, 10) == 0
    assert [await fleet.is_state(id, "WAIT") for id in ids] == [True] * 3


def _follows(node: RedisServer) -> bool:
    told: Any = tell(node, "INFO", "replication")
    return bool(told["role"] == "slave" and told["master_link_status"] == "up")

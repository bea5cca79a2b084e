"""A replica takes over while a worker still reaches only the old primary."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.services import Services
from tests.plugins.redis.services.member import member
from tests.plugins.redis.services.shop import LEASE_S, declare
from tests.plugins.redis.streams.shards import tell
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer, until
from tests.support.waiting import eventually

Own = Callable[..., RedisServer]
#: Seconds from the end of a lease to a first tick elsewhere: a sweep, a claim, a busy loop.
_TAKEN_OVER_S = 2.0


@dataclass
class Split:
    """A primary with a worker behind one proxy, and replicas of it behind another."""

    stack: ExitStack
    old: RedisServer
    new: RedisServer
    third: RedisServer
    book: Any
    replication: Proxy
    notes: str
    near: Services
    far: Services

    def worker(self, server: RedisServer, lease_s: float = LEASE_S) -> int:
        """Start a process with a worker of this server; returns its id."""
        replicas = self.near.link.replicas
        process = member(server.url, notes=self.notes, replicas=replicas, lease_s=lease_s)
        return self.stack.enter_context(process).pid

    async def part(self) -> None:
        """Promote the first replica, and separate the old primary from all replicas."""
        self.replication.black_hole()
        tell(self.new, "REPLICAOF", "NO", "ONE")
        tell(self.third, "REPLICAOF", "127.0.0.1", self.new.port)
        await eventually(lambda: _linked(self.third))

    def ticks(self, id: str, pid: int) -> list[float]:
        lines = self.book.lrange(f"ticks:{id}", 0, -1)
        return [at for whose, at in map(json.loads, lines) if whose == pid]


def _linked(replica: RedisServer) -> bool:
    told: Any = tell(replica, "INFO", "replication")
    return bool(told["master_link_status"] == "up")


def _counted(primary: RedisServer) -> int:
    """The replicas that WAIT counts, which a primary updates up to half a second late."""
    told: Any = tell(primary, "INFO", "replication")
    named = [told.get(f"slave{number}") for number in range(told["connected_slaves"])]
    return sum(one is not None and one["state"] == "online" for one in named)


@contextmanager
def split(own_redis: Own, replicas: int) -> Generator[Split]:
    old, new, third = (own_redis(repl_diskless_sync_delay="0") for _ in range(3))
    book = own_redis()
    with ExitStack() as stack:
        replication = stack.enter_context(Proxy("127.0.0.1", old.port))
        near, far = (declare(server.url, replicas=replicas) for server in (old, new))
        for one in (near, far):
            stack.callback(one.close)
        raw = stack.enter_context(closing(redis.Redis.from_url(book.url, protocol=2)))
        for replica in (new, third):
            tell(replica, "REPLICAOF", "127.0.0.1", replication.port)
        until(
            lambda: _linked(new) and _linked(third) and _counted(old) == 2,
            "the replicas do not follow:\n",
            new.log,
        )
        yield Split(stack, old, new, third, raw, replication, book.url, near, far)


@pytest.mark.row("P32")
@pytest.mark.chaos
async def test_with_replicas_to_hear_of_it_nothing_runs_on_both_sides(own_redis: Own) -> None:
    with split(own_redis, replicas=1) as sides:
        id, other = [await sides.near.start("beat") for _ in range(2)]
        before = sides.worker(sides.old)
        await eventually(lambda: len(sides.ticks(id, before)) > 3)
        after = sides.worker(sides.new)
        await sides.part()
        parted = time.time()
        # A command that only the old primary has is not reported as successful.
        with pytest.raises(BrokerUnavailable, match="0 of 1 replicas"):
            await sides.near.stop(other)
        await eventually(lambda: len(sides.ticks(id, after)) > 3)
        begun = sides.ticks(id, after)[0]
        assert begun - parted < LEASE_S + _TAKEN_OVER_S
        assert begun > max(sides.ticks(id, before)), "one after the other"
        # The old primary does not start it again within a lease.
        await asyncio.sleep(LEASE_S)
        assert begun > max(sides.ticks(id, before))
        found = await sides.far.get(other)
        assert found is not None
        assert (found.state, found.wanted) == ("RUNNING", None)
        assert await sides.far.stop(other) == "RUNNING"
        await eventually(lambda: _is(sides.far, other, "STOPPED"))


@pytest.mark.row("P23")
async def test_a_command_that_only_an_old_primary_has_is_seen_as_not_done(own_redis: Own) -> None:
    """Without `replicas`, the old primary still accepts commands and renewals."""
    with split(own_redis, replicas=0) as sides:
        ids = [await sides.near.start("beat") for _ in range(2)]
        await eventually(lambda: _is(sides.far, ids[1], "WAIT"))
        await sides.part()
        await sides.near.stop(ids[0])
        assert await _is(sides.near, ids[0], "STOPPED")
        late = await sides.near.start("beat")
        assert await sides.far.get(late) is None
        assert (await sides.far.list()).new == ids
        after = sides.worker(sides.new, lease_s=60.0)
        await eventually(lambda: all(len(sides.ticks(id, after)) > 3 for id in ids))
        # Repeated at the new primary, it succeeds.
        assert await sides.far.stop(ids[0]) == "RUNNING"
        assert await sides.far.start("beat", id=late) == late
        await eventually(lambda: _is(sides.far, ids[0], "STOPPED"))
        await eventually(lambda: len(sides.ticks(late, after)) > 3)


@pytest.mark.chaos
async def test_after_a_split_brain_only_one_copy_remains(own_redis: Own) -> None:
    """Without `replicas`, both sides run it until the old primary becomes a replica."""
    with split(own_redis, replicas=0) as sides:
        id = await sides.near.start("beat")
        before = sides.worker(sides.old)
        await eventually(lambda: len(sides.ticks(id, before)) > 3)
        after = sides.worker(sides.new)
        await sides.part()
        await eventually(lambda: len(sides.ticks(id, after)) > 3)
        tell(sides.old, "REPLICAOF", "127.0.0.1", sides.new.port)
        met = time.time()
        # For the time that the old instance could continue.
        await asyncio.sleep(2 * LEASE_S)
        assert met - 0.5 < max(sides.ticks(id, before)) < met + LEASE_S
        assert max(sides.ticks(id, after)) > met + LEASE_S
        found = await sides.far.get(id)
        assert found is not None
        assert f":{after}:" in (found.owner or "")


async def _is(services: Services, id: str, state: str) -> bool:
    found = await services.get(id)
    return found is not None and found.state == state

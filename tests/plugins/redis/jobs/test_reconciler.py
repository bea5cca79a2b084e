"""Ends that a server has forgotten, while it still knows of the claims."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from chancy.attempt.claim import Claim
from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.brokers import opened
from tests.plugins.redis.jobs.test_durability_chaos import follow, in_step, promote
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

HERE = "127.0.0.1"


async def known(bench: Bench, lost: Sequence[Claim], running: Claim) -> None:
    """The server says that what was lost runs yet, and takes it back."""
    found: dict[UUID, UUID] = {}

    async def both() -> bool:
        with suppress(BrokerUnavailable):
            found.update(await bench.broker.running(bench.worker_id, besides={running.id}))
        return len(found) == len(lost)

    await eventually(both)
    assert found == {one.id: one.lease for one in lost}
    assert await bench.settle(*(settlement(one, State.PENDING) for one in lost)) == frozenset()
    assert {one.id for one in await bench.claim(3)} == found.keys()


async def test_a_job_whose_end_was_lost_in_a_failover_is_known_to_run(
    own_redis: Callable[..., RedisServer],
) -> None:
    """Its worker lives, so that nobody rescues it."""
    primary, replica = own_redis(**{"repl-diskless-sync-delay": "0"}), own_redis()
    with Proxy(HERE, primary.port) as way, Proxy(HERE, primary.port) as between:
        follow(replica, between.port)
        async with opened(f"redis://{HERE}:{way.port}/0") as (broker, bench):
            await bench.push(*(prepared() for _ in range(3)))
            ended, failed, running = await bench.claim(3)
            await eventually(lambda: in_step(replica, primary))
            between.black_hole()
            ends = [settlement(ended, State.SUCCEEDED), settlement(failed, State.FAILED)]
            assert await broker.settle(ends) == frozenset()
            primary.kill()
            promote(replica)
            way.target = (HERE, replica.port)
            way.cut()
            await known(bench, [ended, failed], running)


async def test_a_job_that_is_being_claimed_does_not_count_as_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the answer takes: the server has carried it out."""
    run, done, arrives = ShardClient.run, asyncio.Event(), asyncio.Event()

    async def late(self: ShardClient, name: str, *args: Any) -> Any:
        answer = await run(self, name, *args)
        if name == "claim":
            done.set()
            await arrives.wait()
        return answer

    async with opened(redis_url) as (broker, bench):
        [id] = await bench.push(prepared())
        monkeypatch.setattr(ShardClient, "run", late)
        claiming = asyncio.create_task(bench.claim())
        await done.wait()
        assert await bench.state(id) is State.RUNNING
        assert await broker.running(bench.worker_id, besides=()) == {}
        arrives.set()
        [claim] = await claiming
        assert await broker.running(bench.worker_id, besides=()) == {id: claim.lease}
        assert await broker.running(bench.worker_id, besides={id}) == {}

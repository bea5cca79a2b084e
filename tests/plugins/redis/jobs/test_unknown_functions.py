"""Jobs of Redis queues whose function not every worker knows."""

from __future__ import annotations

import pytest

from chancy import Chancy, Queue, State, Worker
from chancy.plugins.redis import RedisBroker, RedisPlugin
from chancy.testing.conformance.bench import Bench, prepared
from chancy.testing.conformance.claiming import set_aside
from tests.integration.test_unknown_functions import OTHER, without
from tests.support.waiting import eventually

SHARED = Queue(name="shared", executor="async", broker="redis", concurrency=4)


@pytest.fixture
def applications(dsn: str, redis_url: str) -> tuple[Chancy, Chancy]:
    """An old application, which lacks a function, and a new one."""
    old, new = (
        Chancy(dsn, queues=[SHARED], plugins=[RedisPlugin(url=redis_url)], pool_size=3)
        for _ in range(2)
    )
    return without(old, OTHER), new


async def test_jobs_that_stay_in_postgres_run_once_a_worker_knows_them(
    applications: tuple[Chancy, Chancy],
) -> None:
    old, new = applications
    async with old, new:
        # A step of a workflow is not moved to Redis.
        await old.control.declare(SHARED)
        sql = (
            "insert into chancy.jobs (id, pos, state, queue, func, arguments, meta) values "
            "(gen_random_uuid(), 1, 0, 'shared', $1, '{\"n\": 1}', '{\"workflow\": {}}') "
            "returning id"
        )
        async with Worker(old):
            async with old.transaction() as tx:
                ((id,),) = await tx.fetch(sql, OTHER)

            async def is_set_aside() -> bool:
                found = await old.control.get([id])
                return found[id].state is State.HELD

            await eventually(is_set_aside)
            async with Worker(new):
                assert (await new.wait_for(id, 20)).state is State.SUCCEEDED


async def test_a_cancelled_job_leaves_the_list_of_its_function(
    broker: RedisBroker, bench: Bench
) -> None:
    gone, kept = await bench.running(prepared(), prepared())
    await bench.settle(set_aside(gone), set_aside(kept))
    name = f"{broker.tag}:aside:{len(gone.queue)}:{gone.queue}{gone.func}"
    assert await broker.client.command("ZCARD", name) == 2
    await broker.cancel([gone.id])
    assert await broker.client.command("ZRANGE", name, 0, -1) == [kept.id.bytes]
    await broker.cancel([kept.id])
    assert await broker.client.command("KEYS", f"{broker.tag}:aside*") == []

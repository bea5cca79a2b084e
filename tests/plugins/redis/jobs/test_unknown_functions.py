"""Jobs of Redis queues whose function not every worker knows."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from chancy import Chancy, Queue, QueuedJob, State, Worker
from chancy.plugins.redis import RedisPlugin
from tests.integration.test_unknown_functions import OTHER, of_one, of_other, without
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


async def finished(chancy: Chancy, ids: Sequence[UUID]) -> list[QueuedJob]:
    return [await chancy.wait_for(id, 20) for id in ids]


async def test_jobs_set_aside_run_once_a_worker_knows_them(
    applications: tuple[Chancy, Chancy],
) -> None:
    old, new = applications
    async with old, new:
        async with Worker(old):
            waiting = await old.push_many(of_other.job(n) for n in range(300))
            known = await old.push_many(of_one.job(n) for n in range(10))
            ran = await finished(old, [reference.id for reference in known])
            assert {job.state for job in ran} == {State.SUCCEEDED}

            async def all_set_aside() -> bool:
                states = {await reference.status() for reference in waiting}
                return states == {State.HELD}

            await eventually(all_set_aside)
            async with Worker(new):
                ran = await finished(old, [reference.id for reference in waiting])
                # One by one they are handed to workers that wait.
                later = [await old.push(of_other.job(n)) for n in range(20)]
                ran += await finished(old, [reference.id for reference in later])
        assert {(job.state, job.attempt) for job in ran} == {(State.SUCCEEDED, 1)}


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

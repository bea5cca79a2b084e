"""Jobs of a Redis queue that are born in SQL: by other programs, or before it moved."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from chancy import Chancy, Queue, State
from chancy.plugins.dead_letter import DeadLetters
from chancy.worker.worker import Worker
from tests.plugins.redis.relay.moving import FAST, application, arrived, fetch, insert, left, plane
from tests.support import jobs
from tests.support.waiting import eventually

LETTERS = DeadLetters(sweep_s=0.1)


@pytest.fixture
async def chancy(dsn: str, redis_url: str) -> AsyncGenerator[Chancy]:
    jobs.noted.clear()
    async with application(dsn, redis_url, LETTERS) as made:
        yield made


async def test_jobs_pushed_by_sql_run_from_redis(chancy: Chancy) -> None:
    """Also what waits for its time: it does so in Postgres."""
    async with Worker(chancy):
        (at_once,) = await insert(chancy, [1], '{"k": "v"}')
        ((later,),) = await fetch(
            chancy,
            "select chancy.push('fast', 'tests.support.jobs.note', '{\"value\": 2}',"
            " delay => interval '0.3 s', priority => 7, max_attempts => 4)",
        )
        assert (await chancy.wait_for(at_once, 10)).result == 1
        assert (await chancy.wait_for(later, 10)).result == 2
        await eventually(lambda: arrived(chancy))
    found = await (await plane(chancy)).get([at_once, later])
    assert {found[at_once].state, found[later].state} == {State.SUCCEEDED}
    assert (found[later].priority, found[later].max_attempts) == (7, 4)
    assert found[at_once].meta == {"k": "v"}
    assert await chancy.control.get([at_once, later]) == {}, "nothing of it was run in Postgres"


async def test_waiting_jobs_move_with_their_queue(dsn: str, redis_url: str) -> None:
    """A worker in a burst ends when all of it has been run."""
    jobs.noted.clear()
    async with application(dsn, redis_url, queue=Queue(name="fast", executor="async")) as chancy:
        numbers = list(range(600))
        made = [jobs.note.job(value=n).with_queue("fast") for n in numbers]
        ids = [one.id for one in await chancy.push_many(made)]
        assert await left(chancy) == (600, 0)
        await chancy.declare(FAST, upsert=True)
        async with Worker(chancy, burst=True) as worker:
            await worker.wait_for_shutdown()
        assert sorted(int(str(n)) for n in jobs.noted) == numbers
        assert await arrived(chancy)
        found = await (await plane(chancy)).get(ids)
        assert {one.state for one in found.values()} == {State.SUCCEEDED}
        assert len(found) == 600
        assert await chancy.control.get(ids) == {}

"""Jobs of a Redis queue that are born in SQL: by other programs, by a replay, before it moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from chancy import Chancy, Queue, State
from chancy.plugins.dead_letter import DeadLetters
from chancy.worker.worker import Worker
from tests.plugins.redis.relay.moving import FAST, application, arrived, fetch, insert, left, plane
from tests.support import jobs
from tests.support.redis_fixtures import RedisServer
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


@pytest.mark.chaos
async def test_a_burst_ends_when_what_was_in_postgres_has_run(chancy: Chancy) -> None:
    for number in range(5):
        await insert(chancy, [number])
        async with Worker(chancy, burst=True) as worker:
            await worker.wait_for_shutdown()
        assert jobs.noted[number:] == [number]


async def test_a_replay_goes_to_redis(chancy: Chancy) -> None:
    failing = jobs.fail.job().with_queue("fast").with_max_attempts(1).with_meta(k="v")
    async with Worker(chancy):
        dead = await chancy.push(failing)
        assert (await dead.wait(10)).state is State.FAILED

        async def filed() -> bool:
            return await LETTERS.get(chancy, dead.id) is not None

        await eventually(filed)
        again = await LETTERS.replay(chancy, dead.id)
        assert again is not None
        assert (await chancy.wait_for(again, 10)).state is State.FAILED
        await eventually(lambda: arrived(chancy))
    found = (await (await plane(chancy)).get([again]))[again]
    assert found.meta["dead_letters"] == {"replay_of": str(dead.id), "replays": 1}
    assert (found.attempt, found.max_attempts, found.meta["k"]) == (1, 1, "v")


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


@pytest.mark.chaos
async def test_jobs_survive_a_temporary_outage_of_redis(
    dsn: str, own_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    """What is pushed by SQL meanwhile waits in Postgres, where it is seen and can be cancelled."""
    jobs.noted.clear()
    server = own_redis(appendonly="yes")
    async with application(dsn, server.url) as chancy, Worker(chancy):
        assert (await chancy.wait_for((await insert(chancy, [1]))[0], 10)).result == 1
        server.kill()
        waiting, cancelled = await insert(chancy, [2, 3])
        await eventually(lambda: "claiming_postponed" in caplog.text)
        assert await left(chancy) == (2, 0)
        found = (await chancy.control.get([waiting]))[waiting]
        assert found.state is State.PENDING
        assert await chancy.cancel(cancelled)
        await asyncio.to_thread(server.start)
        assert (await chancy.wait_for(waiting, 20)).result == 2
        await eventually(lambda: arrived(chancy))
    assert jobs.noted == [1, 2]

"""Jobs of Redis queues that are pushed inside transactions of Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, GlobalConcurrency, Job, JobFilter, State, Unique
from chancy.broker.values import Cancellation
from chancy.errors import PushError
from chancy.plugins.batch import Batch, Batches
from chancy.plugins.workflow import Workflow, Workflows
from chancy.worker.worker import Worker
from tests.plugins.redis.relay.moving import (
    FAST,
    adoption,
    application,
    arrived,
    fetch,
    left,
    plane,
    plugin,
)
from tests.support import jobs
from tests.support.waiting import eventually, gives

RULED = replace(FAST, rules=(GlobalConcurrency(2),))


@pytest.fixture
async def chancy(dsn: str, redis_url: str) -> AsyncGenerator[Chancy]:
    jobs.noted.clear()
    async with application(dsn, redis_url) as made:
        yield made


def note(value: object, unique: Unique | None = None) -> Job[object]:
    return jobs.note.job(value=value).with_queue("fast").with_unique(unique)


async def test_a_rollback_leaves_nothing(chancy: Chancy) -> None:
    async def undone() -> None:
        async with chancy.transaction() as tx:
            await chancy.push(note(1), within=tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await undone()
    assert await left(chancy) == (0, 0)
    async with Worker(chancy):
        assert await (await chancy.push(note(2))).result(10) == 2
    assert jobs.noted == [2]


async def test_jobs_run_after_the_commit_and_not_before(chancy: Chancy) -> None:
    async with Worker(chancy):
        async with chancy.transaction() as tx:
            first = await chancy.push(note(1), within=tx)
            more = await chancy.push_many([note(n) for n in range(2, 300)], within=tx)
            assert await chancy.get_job(first.id) is None
        assert await first.result(10) == 1
        done = await asyncio.gather(*(reference.wait(30) for reference in more))
        assert {one.state for one in done} == {State.SUCCEEDED}
        await eventually(lambda: arrived(chancy))
        broker = await plane(chancy)
        # Removed after the rows.
        marks = f"{broker.tag}:relayed"
        await eventually(lambda: gives(broker.client.command("ZCARD", marks), 0))
    assert sorted(map(int, map(str, jobs.noted))) == list(range(1, 300))
    assert await chancy.control.get([first.id]) == {}, "it ran in Redis"


async def test_all_fields_of_a_pushed_job_reach_redis(chancy: Chancy) -> None:
    job = note({"a": [1.5, "ü"]}).with_priority(7).with_max_attempts(4).with_meta(k="v")
    async with chancy.transaction() as tx:
        reference = await chancy.push(job, within=tx)
        later = await chancy.push(note(0).with_delay(timedelta(hours=1)), within=tx)
    assert (await (await adoption(chancy))("fast")).jobs == 1
    stored = (await (await plane(chancy)).get([reference.id]))[reference.id]
    assert (stored.arguments, stored.priority) == ({"value": {"a": [1.5, "ü"]}}, 7)
    assert (stored.max_attempts, stored.meta, stored.state) == (4, {"k": "v"}, State.PENDING)
    waiting = await later.get()
    assert waiting is not None
    assert (waiting.state, await left(chancy)) == (State.SCHEDULED, (1, 0))
    # It goes to Redis when it is due.
    async with Worker(chancy):
        assert await chancy.run_now(later.id) == {later.id}
        assert await later.result(10) == 0
    assert later.id in await (await plane(chancy)).get([later.id])


async def test_a_job_that_may_expire_stays_in_postgres(chancy: Chancy) -> None:
    job = note(1).with_expires_at(timedelta(hours=1))
    with pytest.raises(PushError, match="does not offer jobs that expire"):
        await chancy.push(job)
    async with chancy.transaction() as tx:
        reference = await chancy.push(job, within=tx)
    found = await (await adoption(chancy))("fast")
    assert (found.jobs, found.rest) == (0, True)
    async with Worker(chancy):
        assert await reference.result(10) == 1
    assert await (await plane(chancy)).get([reference.id]) == {}


async def test_a_job_that_stays_in_postgres_ends_there_if_its_queue_has_rules(
    dsn: str, redis_url: str
) -> None:
    jobs.noted.clear()
    async with application(dsn, redis_url) as chancy:
        async with chancy.transaction() as tx:
            job = note(1).with_expires_at(timedelta(hours=1))
            reference = await chancy.push(job, within=tx)
        await chancy.declare(RULED)
        async with Worker(chancy):
            assert await reference.result(30) == 1
    assert jobs.noted == [1]


async def test_jobs_that_stay_in_postgres_are_refused_if_redis_enforces_rules(
    dsn: str, redis_url: str
) -> None:
    expiring = note(1).with_expires_at(timedelta(hours=1))
    plugins = (Workflows(), batches := Batches())
    async with application(dsn, redis_url, *plugins, queue=RULED) as chancy:
        await chancy.migrate()

        async def within(job: Job[object]) -> None:
            async with chancy.transaction() as tx:
                await chancy.push_many([note(0), job], within=tx)

        pushes: dict[str, Callable[[], Awaitable[object]]] = {
            "a step": lambda: chancy.push(Workflow("w").add(note(1), "a")),
            "a job of a batch": lambda: batches.push(chancy, Batch(name="b"), [note(1)]),
            "a callback of a batch": lambda: batches.push(
                chancy, Batch(name="b", on_finish=note(1)), []
            ),
        }
        for what, push in pushes.items():
            with pytest.raises(PushError, match=f"^{what} cannot use the queue 'fast': it would"):
                await push()
        for job in (expiring, expiring.with_unique(Unique(key="k"))):
            with pytest.raises(PushError, match=r"^a job that expires cannot use"):
                await within(job)
        with psycopg.connect(dsn) as connection, pytest.raises(psycopg.Error) as raised:
            connection.execute(
                "select chancy.push('fast', 'tests.f', expires_in => interval '1 hour')"
            )
        assert raised.value.sqlstate == "CH002"
        assert await left(chancy) == (0, 0)
        (stored,) = await fetch(
            chancy,
            "select (select count(*) from chancy.workflows), (select count(*) from chancy.batches)",
        )
        assert tuple(stored) == (0, 0)
        await within(note(2))


async def test_threads_push_inside_their_transactions(chancy: Chancy, dsn: str) -> None:
    def push() -> UUID:
        with (
            Chancy(dsn, queues=[FAST], plugins=[plugin(chancy)]) as mine,
            psycopg.connect(dsn) as connection,
        ):
            return mine.sync_push(note(3), within=connection).id

    id = await asyncio.to_thread(push)
    assert await left(chancy) == (1, 0)
    async with Worker(chancy):
        assert (await chancy.wait_for(id, 10)).result == 3
    assert id in await (await plane(chancy)).get([id])


async def test_a_job_on_its_way_is_found_counted_and_cancelled(chancy: Chancy) -> None:
    async with chancy.transaction() as tx:
        reference = await chancy.push(note(1), within=tx)
    assert await reference.status() is State.PENDING
    assert [one.id for one in await chancy.find_jobs(JobFilter(queue="fast"))] == [reference.id]
    assert (await chancy.counts())["fast"].pending == 1
    assert await chancy.cancel(reference.id) == {reference.id: Cancellation.CANCELLED}
    assert (await (await adoption(chancy))("fast")).jobs == 0
    async with Worker(chancy):
        assert await (await chancy.push(note(2))).result(10) == 2
    assert (await reference.wait(30)).state is State.CANCELLED
    assert jobs.noted == [2]


@pytest.mark.parametrize("period", [None, timedelta(hours=1)])
async def test_a_job_in_redis_is_replaced_by_one_that_arrives(
    chancy: Chancy, period: timedelta | None
) -> None:
    rule = Unique(key="once", on_conflict="replace", period=period)
    held = await chancy.push(note(1, rule))
    adopt = await adoption(chancy)
    for value in (2, 3):
        async with chancy.transaction() as tx:
            await chancy.push(note(value, rule), within=tx)
        assert (await adopt("fast")).jobs == 1
    broker = await plane(chancy)
    assert (await broker.counts())["fast"].pending == 1
    assert (await broker.get([held.id]))[held.id].arguments == {"value": 3}


async def test_a_period_continues_in_redis(chancy: Chancy) -> None:
    rule = Unique(key="once", period=timedelta(hours=1))
    async with chancy.transaction() as tx:
        first = await chancy.push(note(1, rule), within=tx)
    async with Worker(chancy):
        assert await first.result(10) == 1
        await eventually(lambda: arrived(chancy))
    for _ in range(2):
        assert (await chancy.push(note(2, rule))).id == first.id
    async with chancy.transaction() as tx:
        assert (await chancy.push(note(3, rule), within=tx)).id == first.id
    ((held_s,),) = await fetch(
        chancy,
        "select extract(epoch from until - clock_timestamp())::float8 from chancy.unique_periods",
    )
    broker = await plane(chancy)
    (key,) = await broker.client.command("KEYS", f"{broker.tag}:period:*")
    assert abs(await broker.client.command("PTTL", key) / 1000 - held_s) < 30

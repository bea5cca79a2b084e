"""A fleet is not replaced in one moment: workers of the release before go on with the new tables,
and the tables can be taken back with what the new release has put into them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest

from chancy import Chancy, Job, Limit, ProcessOptions, Queue, State
from chancy.attempt.settlement import Note
from chancy.postgres.schema import migrate as schema
from chancy.testing.conformance.bench import Bench, settlement
from chancy.testing.structure import structure

BEFORE = "0002"
LIMITS = (Limit.time(5), Limit.memory(2**28))
#: Statements as workers of the release before have prepared them.
CLAIM = """
    select id, priority, pos, func, arguments, attempt, max_attempts, crashes, meta
    from chancy.claim($1::uuid, $2::uuid, $3::text, $4::smallint[], $5::bigint[], $6::int)
"""
ANNOUNCE = "update chancy.workers set queues = $2::text[] where id = $1::uuid returning 1"
DECLARE = """
    insert into chancy.queues as q (name, executor, concurrency, tags, poll_interval_s,
      keep_finished)
    values ($1::text, $2::text, $3::int, $4::text[], $5::float8, $6::boolean)
    on conflict (name) do update
    set executor = excluded.executor, concurrency = excluded.concurrency
"""
FINISH = "select finish from chancy.finish($1, $2, $3, null, null, null, null, null)"


@pytest.fixture
async def session(empty_dsn: str) -> AsyncIterator[Any]:
    """A session of the release before."""
    schema.upgrade(empty_dsn, component="core", revision=BEFORE)
    session = await asyncpg.connect(empty_dsn)
    yield session
    await session.close()


async def claim(session: Any, worker_id: uuid.UUID, *, thorough: bool = True) -> list[Any]:
    lanes, hints = (None, None) if thorough else ([0], [-(2**63)])
    found = await session.fetch(CLAIM, worker_id, uuid.uuid4(), "default", lanes, hints, 1)
    return list(found)


async def test_a_worker_of_the_release_before_goes_on(empty_dsn: str, session: Any) -> None:
    worker_id = uuid.uuid4()
    await session.execute(
        "insert into chancy.workers (id, host, pid) values ($1, 'here', 1)", worker_id
    )
    assert await claim(session, worker_id) == []
    schema.upgrade(empty_dsn)
    async with Chancy(empty_dsn) as chancy:
        pushed = [
            await chancy.push(Job(func="shop.work", limits=limits), validate=False)
            for limits in (LIMITS, ())
        ]
        claims = [
            *await claim(session, worker_id),
            *await claim(session, worker_id, thorough=False),
        ]
        assert [one["id"] for one in claims] == [reference.id for reference in pushed]
        assert await claim(session, worker_id) == []
        assert await session.fetch(ANNOUNCE, worker_id, ["default"]) == [(1,)]
        [worker] = await chancy.get_workers()
        assert (worker.queues, worker.broken) == (("default",), {})
        await session.execute(DECLARE, "old", "thread", 3, [], 1.0, True)
        assert Queue(name="old", executor="thread", concurrency=3) in await chancy.get_queues()
        leases = await session.fetchval("select array_agg(lease order by id) from chancy.jobs")
        ended = await session.fetch(FINISH, sorted(one["id"] for one in claims), leases, [4, 4])
        assert len(ended) == 2
        first = await pushed[0].get()
        assert first is not None
        assert (first.state, first.limits) == (State.SUCCEEDED, LIMITS)


async def test_the_tables_can_be_taken_back_with_what_is_in_them(
    empty_dsn: str, session: Any
) -> None:
    before = structure(empty_dsn)
    schema.upgrade(empty_dsn)
    after = structure(empty_dsn)
    async with Chancy(empty_dsn) as chancy:
        bench = Bench(chancy.broker)
        await bench.prepare(Queue(name="big", limits=LIMITS, options=ProcessOptions(max_jobs=5)))
        made = Job(func="shop.work", limits=LIMITS)
        ended, running, waiting = [(await chancy.push(made, validate=False)).id for _ in range(3)]
        claims = await bench.claim(limit=2)
        await chancy.broker.update_meta([Note(one.id, one.lease, '{"said": 1}') for one in claims])
        await bench.settle(settlement(claims[0], State.SUCCEEDED))
        await chancy.broker.announce(bench.worker_id, ["default"], {"big": "no"})
    schema.downgrade(empty_dsn, component="core", revision=BEFORE)
    assert structure(empty_dsn) == before
    [claimed] = await claim(session, bench.worker_id)
    assert claimed["id"] == waiting
    rows = await session.fetch(
        "select id, state, meta::text, limits::text from chancy.jobs union all"
        " select id, state, meta::text, limits::text from chancy.finished_jobs order by id"
    )
    kept = '{"time_s": 5, "memory_bytes": 268435456}'
    assert [tuple(row) for row in rows] == [
        (ended, 4, '{"said": 1}', kept),
        (running, 1, '{"said": 1}', kept),
        (waiting, 1, None, kept),
    ]
    schema.upgrade(empty_dsn)
    assert structure(empty_dsn) == after
    with psycopg.connect(empty_dsn) as connection:
        queues = connection.execute("select name, limits, options from chancy.queues").fetchall()
    assert sorted(queues) == [("big", None, None), ("default", None, None)]

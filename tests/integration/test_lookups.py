"""Lookups of jobs by id, in a history of many partitions."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from chancy import Chancy, Job, JobFilter, State
from chancy.job.ids import new_id, new_ids
from chancy.postgres.broker import PostgresBroker
from tests.plugins.pruner.finished import add_day

INSERT = """
insert into chancy.finished_jobs (
  id, pos, state, queue, priority, func, attempt, max_attempts, crashes, pushed_at, finished_at)
values (%s, 1, %s, 'default', 0, 'shop.send', 1, 1, 0, now(), %s)
"""


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn) as made:
        yield made


def finish(dsn: str, id: uuid.UUID, at: datetime, state: State = State.SUCCEEDED) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        add_day(connection, at.date())
        connection.execute(INSERT.encode(), (id, int(state), at))


async def test_jobs_are_found_whatever_their_ids_say_of_the_time(chancy: Chancy, dsn: str) -> None:
    now = datetime.now(UTC)
    ordinary, ahead, own = new_id(), new_id(), uuid.uuid4()
    # Finished days before the time in its id: the clock of the client was ahead.
    finish(dsn, ahead, now - timedelta(days=3))
    finish(dsn, ordinary, now)
    finish(dsn, own, now - timedelta(days=5))
    for ids in ([ordinary], [ahead], [own], [ordinary, ahead], [ordinary, ahead, own]):
        assert set(await chancy.broker.get([*ids, new_id()])) == set(ids)


async def test_of_an_id_that_was_pushed_again_the_last_one_is_returned(
    chancy: Chancy, dsn: str
) -> None:
    now, id = datetime.now(UTC), new_id()
    finish(dsn, id, now + timedelta(minutes=1), State.FAILED)
    finish(dsn, id, now, State.SUCCEEDED)
    finish(dsn, id, now - timedelta(days=2), State.CANCELLED)
    assert (await chancy.broker.get([id]))[id].state is State.FAILED


async def test_a_statement_returns_a_hundred_jobs_at_most(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = new_ids(250)
    await chancy.push_many([Job(func="a.b", id=id) for id in ids], validate=False)
    store = chancy.control
    assert isinstance(store, PostgresBroker)
    counts: list[int] = []
    fetch = store.fetch

    async def counted(statement: str, *given: object, deadline_s: float = 10.0) -> Any:
        rows = await fetch(statement, *given, deadline_s=deadline_s)
        counts.append(len(rows))
        return rows

    monkeypatch.setattr(store, "_fetch", counted)
    assert {*await chancy.get_jobs(ids)} == {*ids}
    assert counts == [100, 100, 50]
    counts.clear()
    newest = sorted(ids, reverse=True)
    assert [job.id for job in await chancy.find_jobs(JobFilter(limit=1_000))] == newest
    assert counts == [100, 100, 50]
    counts.clear()
    found = await chancy.find_jobs(JobFilter(before=newest[9], limit=120))
    assert [job.id for job in found] == newest[10:130]
    assert counts == [100, 20]


def test_a_recent_job_is_read_from_the_partitions_since_its_push(dsn: str) -> None:
    now, id = datetime.now(UTC), new_id()
    for ago in range(3, 10):
        finish(dsn, new_id(), now - timedelta(days=ago))
    finish(dsn, id, now)
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert _scans(connection, id) <= 10  # yesterday, today, a week ahead and the default one
        assert _scans(connection, uuid.uuid4()) >= 15


def _scans(connection: psycopg.Connection[Any], id: uuid.UUID) -> int:
    """The number of partitions whose index a lookup reads."""
    count = (
        "select coalesce(sum(idx_scan), 0)::int from pg_stat_xact_user_tables"
        " where relname like 'finished_jobs_%'"
    )
    with connection.transaction():
        connection.execute("select * from chancy.jobs_by_id(array[%s])", (id,)).fetchall()
        found = connection.execute(count).fetchone()
    assert found is not None
    return int(found[0])

"""Pushes of the same moment: they share a commit, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy
from chancy.broker import PreparedJob
from chancy.errors import StatementFailed
from chancy.identity import new_id
from chancy.job import Job
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.pushes import AT_ONCE, Pushes, columns
from tests import jobs
from tests.waiting import eventually


class Statements:
    """Counts the statements that go through it to a broker."""

    def __init__(self, broker: PostgresBroker) -> None:
        self.sent: list[str] = []
        self._broker = broker

    async def fetch(self, sql: str, *parameters: object) -> Sequence[Sequence[object]]:
        self.sent.append(sql)
        return await self._broker.fetch(sql, *parameters)


@pytest.fixture
async def broker(dsn: str) -> AsyncIterator[PostgresBroker]:
    async with Chancy(dsn) as chancy:
        assert isinstance(chancy.broker, PostgresBroker)
        yield chancy.broker


@pytest.fixture
def statements(broker: PostgresBroker) -> Statements:
    return Statements(broker)


@pytest.fixture
def pushes(broker: PostgresBroker, statements: Statements) -> Pushes:
    return Pushes(statements.fetch, broker.sql)


@contextmanager
def locked(dsn: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """No job can be stored inside of the block."""
    with psycopg.connect(dsn) as session:
        session.execute("lock table chancy.jobs in share mode")
        yield session
        session.rollback()


def prepared(
    id: UUID | None = None, *, queue: str = "default", arguments: str = "{}"
) -> PreparedJob:
    return PreparedJob(id or new_id(), queue, 0, "tests.jobs.note", arguments, None, None, 3, None)


def stored(dsn: str) -> set[object]:
    with psycopg.connect(dsn) as session:
        return {row[0] for row in session.execute("select id from chancy.jobs")}


def start(pushes: Pushes, wanted: Sequence[PreparedJob]) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(pushes.push([job])) for job in wanted]


async def test_pushes_of_one_moment_share_a_statement(
    dsn: str, pushes: Pushes, statements: Statements
) -> None:
    wanted = [prepared(queue=f"q{number % 3}") for number in range(100)]
    with locked(dsn):
        tasks = start(pushes, wanted)
        await eventually(lambda: len(statements.sent) == AT_ONCE)
    await asyncio.gather(*tasks)
    assert stored(dsn) == {job.id for job in wanted}
    assert len(statements.sent) == AT_ONCE + 1


async def test_one_push_after_the_other_never_waits(
    dsn: str, pushes: Pushes, statements: Statements
) -> None:
    wanted = [prepared() for _ in range(5)]
    for job in wanted:
        await pushes.push([job])
    assert stored(dsn) == {job.id for job in wanted}
    assert len(statements.sent) == 5


async def test_a_push_that_is_refused_is_refused_alone(
    dsn: str, pushes: Pushes, statements: Statements
) -> None:
    good = [prepared() for _ in range(10)]
    bad = prepared(arguments='{"a":')
    with locked(dsn):
        tasks = start(pushes, [*good[:5], bad, *good[5:]])
        await eventually(lambda: len(statements.sent) == AT_ONCE)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(ended.pop(5), StatementFailed)
    assert ended == [None] * 10
    assert stored(dsn) == {job.id for job in good}


async def test_an_id_that_is_there_stays_one_job(
    dsn: str, pushes: Pushes, statements: Statements
) -> None:
    there, others = prepared(), [prepared() for _ in range(4)]
    await pushes.push([there])
    await pushes.push([there])
    await pushes.push([there, others[0], others[0]])
    statements.sent.clear()
    with locked(dsn):
        tasks = start(pushes, [*others[1:], there, there])
        await eventually(lambda: len(statements.sent) == AT_ONCE)
    await asyncio.gather(*tasks)
    assert stored(dsn) == {there.id, *(job.id for job in others)}


async def test_a_push_that_is_given_up_holds_nobody_up(
    dsn: str, pushes: Pushes, statements: Statements
) -> None:
    wanted = [prepared() for _ in range(6)]
    with locked(dsn):
        tasks = start(pushes, wanted)
        await eventually(lambda: len(statements.sent) == AT_ONCE)
        tasks[3].cancel()
        await asyncio.wait([tasks[3]])
    await asyncio.gather(*(task for task in tasks if not task.cancelled()))
    assert tasks[3].cancelled()
    assert stored(dsn) == {job.id for job in wanted} - {wanted[3].id}


async def test_a_push_that_waits_too_long_goes_alone(
    dsn: str, pushes: Pushes, statements: Statements
) -> None:
    wanted = [prepared() for _ in range(AT_ONCE + 3)]
    with locked(dsn):
        tasks = start(pushes, wanted)
        # Each of the three looks whether it was stored, and then has a statement of its own.
        await eventually(lambda: len(statements.sent) == AT_ONCE + 2 * 3)
    await asyncio.gather(*tasks)
    assert stored(dsn) == {job.id for job in wanted}


async def test_closing_waits_for_what_is_on_its_way(
    dsn: str, pushes: Pushes, statements: Statements
) -> None:
    wanted = [prepared() for _ in range(5)]
    with locked(dsn):
        tasks = start(pushes, wanted)
        await eventually(lambda: len(statements.sent) == AT_ONCE)
    await asyncio.wait(tasks[:AT_ONCE], return_when=asyncio.FIRST_COMPLETED)
    await pushes.close()
    assert stored(dsn) >= {job.id for job in wanted[AT_ONCE:]}
    await asyncio.gather(*tasks)


async def test_what_differs_in_a_bulk_push_is_kept(dsn: str) -> None:
    made = jobs.note.job(value=1)
    wanted: list[Job] = [
        made,
        made.with_queue("other"),
        made.with_priority(7),
        made.with_max_attempts(9),
        replace(made, func="tests.jobs.double"),
        made.with_meta(a=1),
        made.with_run_at(3600),
    ]
    async with Chancy(dsn) as chancy:
        references = await chancy.push_many(wanted, validate=False)
        found = [await reference.get() for reference in references]
    settings = [
        (job.func, job.queue, job.priority, job.max_attempts, dict(job.meta))
        for job in found
        if job is not None
    ]
    assert settings == [
        (job.func, job.queue, job.priority, job.max_attempts, dict(job.meta)) for job in wanted
    ]
    assert [job is not None and job.run_at is not None for job in found] == [False] * 6 + [True]


def test_settings_that_all_jobs_share_are_sent_once() -> None:
    same = columns([prepared(), prepared(), prepared()])
    assert [len(column) if column is not None else None for column in same] == [
        3, 1, 1, 1, 3, None, None, 1, None,
    ]  # fmt: skip
    mixed = columns([prepared(), prepared(queue="other"), prepared()])
    assert mixed[1] == ["default", "other", "default"]

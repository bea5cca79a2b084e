"""Pushes of the same moment: they share a commit, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy
from chancy.broker.values import CHUNK, PreparedJob
from chancy.errors import BrokerUnavailable, PushError, StatementFailed
from chancy.job.definition import Job
from chancy.job.ids import new_id
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.push.bulk import KEPT
from chancy.postgres.push.coalescing import AT_ONCE, PushCoalescer
from tests.support import jobs
from tests.support.sql import ask
from tests.support.waiting import eventually


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
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pushes wait for running statements however long these take, as on a busy machine."""
    monkeypatch.setattr("chancy.postgres.push.coalescing._TURN_S", 60)


@pytest.fixture
def pushes(broker: PostgresBroker, statements: Statements) -> PushCoalescer:
    return PushCoalescer(statements.fetch, broker.transaction, broker.sql, lambda: None)


@contextmanager
def locked(dsn: str) -> Generator[psycopg.Connection[tuple[object, ...]]]:
    """No job can be stored inside of the block."""
    with psycopg.connect(dsn) as session:
        session.execute("lock table chancy.jobs in share mode")
        yield session
        session.rollback()


def prepared(
    id: UUID | None = None, *, queue: str = "default", arguments: str = "{}"
) -> PreparedJob:
    return PreparedJob(
        id or new_id(), queue, 0, "tests.support.jobs.note", arguments, None, None, 3, None
    )


def stored(dsn: str) -> set[object]:
    return {row[0] for row in ask(dsn, "select id from chancy.jobs")}


def start(pushes: PushCoalescer, wanted: Sequence[PreparedJob]) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(pushes.push([job])) for job in wanted]


@pytest.mark.usefixtures("patient")
async def test_pushes_at_once_share_a_statement(
    dsn: str, pushes: PushCoalescer, statements: Statements
) -> None:
    wanted = [prepared(queue=f"q{number % 3}") for number in range(100)]
    with locked(dsn):
        tasks = start(pushes, wanted)
        await eventually(lambda: len(statements.sent) == AT_ONCE)
    await asyncio.gather(*tasks)
    assert stored(dsn) == {job.id for job in wanted}
    assert len(statements.sent) == AT_ONCE + 1


@pytest.mark.usefixtures("patient")
async def test_pushes_at_once_share_a_statement_of_bounded_size(
    dsn: str, pushes: PushCoalescer, statements: Statements
) -> None:
    large = json.dumps({"text": "x" * 3_000_000})
    wanted = [prepared(arguments=large) for _ in range(AT_ONCE + 6)]
    with locked(dsn):
        tasks = start(pushes, wanted)
        await eventually(lambda: len(statements.sent) == AT_ONCE)
    await asyncio.gather(*tasks)
    assert stored(dsn) == {job.id for job in wanted}
    assert len(statements.sent) == AT_ONCE + 3


async def test_one_push_after_the_other_never_waits(
    dsn: str, pushes: PushCoalescer, statements: Statements
) -> None:
    wanted = [prepared() for _ in range(5)]
    for job in wanted:
        await pushes.push([job])
    assert stored(dsn) == {job.id for job in wanted}
    assert len(statements.sent) == 5


@pytest.mark.usefixtures("patient")
async def test_a_push_that_is_refused_is_refused_alone(
    dsn: str, pushes: PushCoalescer, statements: Statements
) -> None:
    good = [prepared() for _ in range(10)]
    bad = prepared(arguments='{"a":')
    with locked(dsn):
        tasks = start(pushes, [*good[:5], bad, *good[5:]])
        await eventually(lambda: len(statements.sent) == AT_ONCE)
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(ended.pop(5), StatementFailed)
    assert ended == [{}] * 10
    assert stored(dsn) == {job.id for job in good}


@pytest.mark.usefixtures("patient")
async def test_an_id_that_is_there_stays_one_job(
    dsn: str, pushes: PushCoalescer, statements: Statements
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


@pytest.mark.usefixtures("patient")
async def test_a_push_that_is_given_up_delays_no_caller(
    dsn: str, pushes: PushCoalescer, statements: Statements
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


async def test_pushes_that_wait_too_long_go_together(
    dsn: str, pushes: PushCoalescer, statements: Statements
) -> None:
    wanted = [prepared() for _ in range(AT_ONCE + 50)]
    with locked(dsn):
        tasks = start(pushes, wanted)
        await eventually(lambda: len(statements.sent) > AT_ONCE)
    await asyncio.gather(*tasks)
    assert len(statements.sent) == AT_ONCE + 1
    assert stored(dsn) == {job.id for job in wanted}


@pytest.mark.usefixtures("patient")
async def test_closing_waits_for_what_is_on_its_way(
    dsn: str, pushes: PushCoalescer, statements: Statements
) -> None:
    wanted = [prepared() for _ in range(5)]
    with locked(dsn):
        tasks = start(pushes, wanted)
        await eventually(lambda: len(statements.sent) == AT_ONCE)
    await asyncio.wait(tasks[:AT_ONCE], return_when=asyncio.FIRST_COMPLETED)
    await pushes.close()
    assert stored(dsn) >= {job.id for job in wanted[AT_ONCE:]}
    await asyncio.gather(*tasks)


async def test_differing_fields_of_a_bulk_push_are_kept(dsn: str) -> None:
    made = jobs.note.job(value=1)
    wanted: list[Job] = [
        made,
        made.with_queue("other"),
        made.with_priority(7),
        made.with_max_attempts(9),
        replace(made, func="tests.support.jobs.double"),
        made.with_meta(a=1),
        made.with_delay(3600),
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


async def test_jobs_that_differ_in_arguments_alone_keep_them_and_their_order(dsn: str) -> None:
    values: list[object] = ["],[", '"\\', "ü€\n", [], {}, {"a": [1.5, None, True]}, 2**70, None]
    async with Chancy(dsn) as chancy:
        references = await chancy.push_many(
            [Job(func="a.b", arguments={"value": value}) for value in values], validate=False
        )
        found = [await reference.get() for reference in references]
    assert [job and job.arguments for job in found] == [{"value": value} for value in values]
    ids = ask(dsn, "select id from chancy.jobs order by pos")
    assert [id for (id,) in ids] == [job.id for job in found if job is not None]


@pytest.mark.parametrize(
    ("count", "place"),
    [
        (CHUNK, "twice"),
        (CHUNK + 1, "first"),
        (KEPT * CHUNK, "last but one chunk"),
        (KEPT * CHUNK, "twice"),
        *(((KEPT + 2) * CHUNK + 1, place) for place in ("first", "last but one chunk", "twice")),
    ],
)
async def test_a_bulk_push_leaves_what_is_there(dsn: str, count: int, place: str) -> None:
    made = [Job(func="a.b", id=new_id()) for _ in range(count)]
    there = {"first": 0, "last but one chunk": max(0, count - CHUNK - 2)}.get(place)
    async with Chancy(dsn) as chancy:
        if there is not None:
            await chancy.push(made[there].with_queue("before"), validate=False)
        again = [made[-1]] if place == "twice" else []
        references = await chancy.push_many(iter([*made, *again]), validate=False)
        assert len(references) == count + len(again)
    rows = ask(dsn, "select id, queue from chancy.jobs order by pos")
    expected = [(job.id, "default") for job in made]
    if there is not None:
        expected.insert(0, (expected.pop(there)[0], "before"))
    assert rows == expected


async def test_a_bulk_push_that_ends_with_a_bad_job_leaves_nothing(dsn: str) -> None:
    def some() -> Iterator[Job]:
        yield from (Job(func="a.b") for _ in range(3 * CHUNK))
        yield Job(func="a.b", priority=1_000)

    async with Chancy(dsn, pool_size=1) as chancy:
        with pytest.raises(PushError, match="priority"):
            await chancy.push_many(some(), validate=False)
        assert stored(dsn) == set()
        # The session is in order again, and the only one.
        await chancy.push_many([Job(func="a.b")] * (CHUNK + 1), validate=False)
    assert len(stored(dsn)) == CHUNK + 1


async def test_a_bulk_push_of_a_few_chunks_outlives_its_session(dsn: str) -> None:
    """The session is ended in the middle of the transaction; the push is made again."""
    ended: list[int] = []

    def some() -> Iterator[Job]:
        for number in range(4 * CHUNK):
            if number == 3 * CHUNK and not ended:
                ended.append(terminate_pushers(dsn))
            yield Job(func="a.b")

    async with Chancy(dsn) as chancy:
        await chancy.push_many(some(), validate=False)
    assert ended == [1]
    assert len(stored(dsn)) == 4 * CHUNK


async def test_a_bulk_push_of_many_chunks_reports_that_its_session_was_lost(dsn: str) -> None:
    def some() -> Iterator[Job]:
        for number in range((KEPT + 3) * CHUNK):
            if number == (KEPT + 2) * CHUNK:
                terminate_pushers(dsn)
            yield Job(func="a.b")

    async with Chancy(dsn) as chancy:
        with pytest.raises(BrokerUnavailable):
            await chancy.push_many(some(), validate=False)
    assert stored(dsn) == set()


def terminate_pushers(dsn: str) -> int:
    """End the sessions that are in a transaction; how many there were."""
    rows = ask(
        dsn,
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'chancy' and datname = current_database()"
        " and xact_start is not null",
    )
    return len(rows)

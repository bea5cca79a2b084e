"""Large jobs, by every way of pushing many: no statement has more than 8 MB of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import asyncpg
import psycopg
import pytest

from chancy import Chancy, Queue, Unique
from chancy.broker.sizes import CHUNK_SIZE, size_of
from chancy.broker.values import PreparedJob
from chancy.errors import BrokerUnavailable
from chancy.job.definition import Job
from chancy.postgres.drivers.session import Session
from chancy.postgres.push.statement import insertion
from tests.support.two_brokers import TwoBrokers

LARGE = "x" * 900_000
COUNT = 20


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn) as made:
        yield made


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The number and the size of the jobs of each insertion."""
    found: list[tuple[int, int]] = []

    def measured(sql: Any, jobs: Sequence[PreparedJob], **kinds: bool) -> tuple[str, list[object]]:
        found.append((len(jobs), sum(map(size_of, jobs))))
        return insertion(sql, jobs, **kinds)

    for module in ("postgres.broker", "postgres.push.bulk", "postgres.push.coalescing"):
        monkeypatch.setattr(f"chancy.{module}.insertion", measured)
    monkeypatch.setattr("chancy.app.background_broker.insertion", measured)
    return found


def large(unique: bool, count: int = COUNT) -> Iterator[Job]:
    for number in range(count):
        job = Job(func="a.b", arguments={"number": number, "text": LARGE})
        yield job.with_unique(Unique()) if unique else job


def check(dsn: str, statements: list[tuple[int, int]], count: int = COUNT) -> None:
    assert sum(jobs for jobs, _ in statements) == count
    assert max(size for _, size in statements) <= CHUNK_SIZE
    assert len(statements) <= 4, "no more statements than needed"
    with psycopg.connect(dsn) as session:
        rows = session.execute("select (arguments->>'number')::int from chancy.jobs order by pos")
        assert [number for (number,) in rows] == list(range(count))


@pytest.mark.parametrize("unique", [False, True])
async def test_statements_of_a_bulk_push_are_bounded_in_size(
    chancy: Chancy, dsn: str, statements: list[tuple[int, int]], unique: bool
) -> None:
    references = await chancy.push_many(large(unique), validate=False)
    assert len(references) == COUNT
    check(dsn, statements)


@pytest.mark.parametrize("unique", [False, True])
async def test_statements_within_a_transaction_are_bounded_in_size(
    chancy: Chancy, dsn: str, statements: list[tuple[int, int]], unique: bool
) -> None:
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        await chancy.push_many(large(unique), within=connection, validate=False)
    await connection.close()
    check(dsn, statements)


@pytest.mark.parametrize("own", [False, True])
def test_statements_of_a_sync_push_are_bounded_in_size(
    dsn: str, statements: list[tuple[int, int]], own: bool
) -> None:
    with Chancy(dsn) as chancy, psycopg.connect(dsn) as session:
        within = session if own else None
        chancy.sync_push_many(large(unique=True), within=within, validate=False)
        session.commit()
    check(dsn, statements)


async def test_statements_of_a_push_to_several_brokers_are_bounded_in_size(
    dsn: str, statements: list[tuple[int, int]]
) -> None:
    other = Queue(name="other", broker="memory")
    async with Chancy(dsn, plugins=[TwoBrokers()], queues=[other]) as chancy:
        await chancy.declare(other)
        jobs = [job for one in large(False) for job in (one, Job(func="a.b", queue="other"))]
        await chancy.push_many(jobs, validate=False)
        await chancy.push_many([Job(func="a.b", queue="other")], validate=False)
    check(dsn, statements)


async def test_the_repetition_of_a_bulk_push_is_bounded_in_size(
    chancy: Chancy,
    dsn: str,
    statements: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command, lost = Session.command, list[str]()

    async def losing(self: Session, sql: str) -> str:
        if sql == "commit" and not lost:
            lost.append(sql)
            self.abort()
            raise BrokerUnavailable("the connection is lost")
        return await command(self, sql)

    monkeypatch.setattr(Session, "command", losing)
    await chancy.push_many(large(False), validate=False)
    assert lost
    first = len(statements) // 2
    check(dsn, statements[first:])
    assert statements[:first] == statements[first:]

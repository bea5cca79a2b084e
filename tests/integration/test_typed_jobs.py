"""Typed arguments and results, from the push to the reference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from chancy import Chancy, JobFailed, Queue, Worker, as_completed, gather
from chancy.plugins.retry import Retries
from tests.support import typed_jobs
from tests.support.command import inside
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.typed_jobs import Bill, Color, Item

AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
DAY = timedelta(days=1)
ID = UUID("0190a0b0-0000-7000-8000-000000000001")
ITEMS = [Item(name="cup", price=Decimal("1.10")), Item(name="pot", price=Decimal("2.20"))]
QUEUE = Queue(name="typed", executor="async", poll_interval_s=0.2)


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn, queues=[QUEUE], plugins=[Retries()]) as made:
        yield made


def rows(dsn: str, sql: str) -> list[Any]:
    return [row[0] for row in ask(dsn, sql)]


async def test_values_go_through_the_database_as_they_are(chancy: Chancy, dsn: str) -> None:
    job = typed_jobs.bill.job(ID, ITEMS, AT, within=DAY)
    reference = await chancy.push(job)
    assert rows(dsn, "select arguments from chancy.jobs") == [
        {
            "id": str(ID),
            "items": [{"name": "cup", "price": "1.10"}, {"name": "pot", "price": "2.20"}],
            "at": "2030-01-02T03:04:05.678901Z",
            "within": "P1D",
        }
    ]
    expected = Bill(id=ID, total=Decimal("3.30"), due=AT + DAY, color=Color.RED)
    async with Worker(chancy):
        assert await reference.result(60) == expected
        more = await chancy.push_many([job, job])
        assert await gather(more, timeout_s=60) == [expected, expected]
        found = [await one.result() async for one in as_completed(more, timeout_s=60)]
        assert found == [expected, expected]
        done = await reference.wait(60)
        assert done.result["due"] == "2030-01-03T03:04:05.678901Z"
        assert chancy.read_result(done) == expected


async def test_arguments_that_no_longer_fit_are_not_tried_again(chancy: Chancy, dsn: str) -> None:
    reference = await chancy.push(typed_jobs.later.job(AT, DAY))
    ask(dsn, """update chancy.jobs set arguments = arguments || '{"at": "soon"}'""")
    async with Worker(chancy):
        with pytest.raises(JobFailed, match=r"InvalidArguments: .*later: parameter 'at'"):
            await reference.result(60)
        ended = present(await reference.get())
        assert ended.attempt == 1


async def test_a_result_that_does_not_fit_is_a_failure_that_is_not_tried_again(
    chancy: Chancy,
) -> None:
    async with Worker(chancy):
        with pytest.raises(JobFailed, match=r"InvalidResult: .*wrong: the result: .* not 'soon'"):
            await (await chancy.push(typed_jobs.wrong.job())).result(60)


async def test_a_job_that_completes_itself_has_a_typed_result_too(chancy: Chancy, dsn: str) -> None:
    async with Worker(chancy):
        assert await (await chancy.push(typed_jobs.complete.job(dsn, AT))).result(60) == AT


async def test_code_without_a_loop_gets_typed_results_too(chancy: Chancy, dsn: str) -> None:
    def work() -> datetime:
        with Chancy(dsn, queues=[QUEUE]) as blocking:
            return blocking.sync_push(typed_jobs.later.job(AT, DAY)).sync_result(60)

    async with Worker(chancy):
        assert await asyncio.to_thread(work) == AT + DAY


def test_the_command_line_gives_typed_values_as_json(dsn: str) -> None:
    path = "tests.support.typed_jobs.later"
    inside("push", path, "--arg", 'at="2030-01-01T00:00Z"', "--arg", 'within="P1D"', dsn=dsn)
    assert rows(dsn, "select arguments from chancy.jobs") == [
        {"at": "2030-01-01T00:00:00Z", "within": "P1D"}
    ]
    wrong = inside("push", path, "--arg", 'at="soon"', "--arg", 'within="P1D"', dsn=dsn, code=2)
    assert "later: parameter 'at': Input should be a valid datetime" in wrong.err

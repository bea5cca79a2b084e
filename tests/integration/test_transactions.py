"""Sessions of the pool whose transaction was used by several tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import pytest

from chancy import Chancy
from tests.support import jobs
from tests.support.sql import count

DRIVERS = ["asyncpg", "psycopg"]


@pytest.fixture(params=DRIVERS)
async def chancy(dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[Chancy]:
    driver: Literal["asyncpg", "psycopg"] = request.param
    async with Chancy(dsn, pool_size=1, driver=driver) as made:
        yield made


async def test_two_pushes_at_once_in_a_transaction(chancy: Chancy, dsn: str) -> None:
    """It is refused, and what is pushed with that session next is no part of it."""
    await chancy.push(jobs.note.job(0))  # so that the next ones read nothing before they are stored

    async def push_two() -> None:
        async with chancy.transaction() as transaction:
            pushes = (chancy.push(jobs.note.job(n), within=transaction) for n in (1, 2))
            await asyncio.gather(*pushes)

    with pytest.raises(RuntimeError, match="two tasks at the same time"):
        await push_two()
    await chancy.push(jobs.note.job(3))
    assert count(dsn) == 2


async def test_a_push_after_its_transaction(chancy: Chancy, dsn: str) -> None:
    """It is refused: the session may be in the transaction of another task by then."""
    async with chancy.transaction() as over:
        await chancy.push(jobs.note.job(0), within=over)
    async with chancy.transaction():
        with pytest.raises(RuntimeError, match="the transaction has ended"):
            await chancy.push(jobs.note.job(1), within=over)
        with pytest.raises(RuntimeError, match="the transaction has ended"):
            await over.fetch("select 1")
    assert count(dsn) == 1


async def test_a_push_that_outlives_its_transaction(chancy: Chancy, dsn: str) -> None:
    await chancy.push(jobs.note.job(0))  # so that the next one reads nothing before it is stored
    left: list[asyncio.Task[object]] = []

    async def leave_one() -> None:
        async with chancy.transaction() as transaction:
            left.append(asyncio.create_task(chancy.push(jobs.note.job(1), within=transaction)))
            await asyncio.sleep(0)  # it begins

    with pytest.raises(RuntimeError, match="two tasks at the same time"):
        await leave_one()
    await asyncio.gather(*left, return_exceptions=True)
    await chancy.push(jobs.note.job(3))
    assert count(dsn) == 2

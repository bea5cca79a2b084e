"""Pushing within a transaction of each library that has an event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from chancy import Chancy, JobFilter, Queue, SchemaMismatch, Worker
from chancy.broker.values import CHUNK
from chancy.postgres.broker import PostgresBroker
from chancy.worker.surveyor import Surveyor
from tests.integration.within.stacks import ASYNC_STACKS, AsyncStack, sqlstate
from tests.support import jobs
from tests.support.waiting import eventually

#: Three statements of a bulk push.
COUNT = 2 * CHUNK + 1
#: For what `bind` has no part in: the stacks over which the others lie.
OWN = ("psycopg connection", "asyncpg connection", "AsyncSession on asyncpg")
ON_OWN = pytest.mark.parametrize(
    "stack", [ASYNC_STACKS[name] for name in OWN], ids=OWN, indirect=True
)


class Undo(Exception):
    """Ends a transaction without a commit."""


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    jobs.noted.clear()
    # Without a notification nothing would be looked for in the time of these tests.
    queues = [Queue(name="async", executor="async", poll_interval_s=60.0)]
    async with Chancy(dsn, queues=queues, pool_size=2) as made:
        await made.delete_queue("default")
        yield made


@pytest.fixture(params=list(ASYNC_STACKS.values()), ids=list(ASYNC_STACKS))
async def stack(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[AsyncStack]:
    async with request.param(dsn) as opened:
        yield opened


@ON_OWN
async def test_a_commit_wakes_a_worker(
    chancy: Chancy, stack: AsyncStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For a second after a notice a worker looks often, and would find what none told of; so would
    # a survey.
    monkeypatch.setattr("chancy.worker.puller._LADDER_S", ())
    monkeypatch.setattr(Surveyor, "_pause_s", lambda *_: 3_600.0)
    async with Worker(chancy) as worker:
        await eventually(lambda: worker.listening)
        for number in range(10):
            async with stack.transaction():
                reference = await chancy.push(jobs.note.job(number), within=stack.within)
                assert await reference.get() is None
                await stack.execute("select 1")
            await eventually(lambda: len(jobs.noted) > number)  # noqa: B023


async def test_rollbacks_of_transactions_and_savepoints_take_their_jobs_along(
    chancy: Chancy, stack: AsyncStack
) -> None:
    with suppress(Undo):
        async with stack.transaction():
            # The first statement of its transaction: nothing has begun it yet.
            await chancy.push(jobs.note.job(value=1), within=stack.within)
            raise Undo
    assert await chancy.find_jobs(JobFilter()) == []
    async with stack.transaction():
        with suppress(Undo):
            async with stack.savepoint():
                await chancy.push(jobs.note.job(value=0), within=stack.within)
                raise Undo
        kept = await chancy.push(jobs.note.job(value=1), within=stack.within)
        with suppress(Undo):
            async with stack.savepoint():
                await chancy.push(jobs.note.job(value=2), within=stack.within)
                raise Undo
        async with stack.savepoint():
            inner = await chancy.push(jobs.note.job(value=3), within=stack.within)
    assert {job.id for job in await chancy.find_jobs(JobFilter())} == {kept.id, inner.id}


@ON_OWN
@pytest.mark.parametrize("jobs_together", [1, 3_000])
async def test_a_failed_transaction_gives_its_error(
    chancy: Chancy, stack: AsyncStack, jobs_together: int
) -> None:
    async def fail() -> None:
        async with stack.transaction():
            with suppress(Exception):
                await stack.execute("select 1/0")
            if jobs_together == 1:
                await chancy.push(jobs.note.job(value=1), within=stack.within)
            else:
                many = (jobs.note.job(value=n) for n in range(jobs_together))
                await chancy.push_many(many, within=stack.within)

    with pytest.raises(stack.failed) as raised:
        await fail()
    assert sqlstate(raised.value) == "25P02"
    assert await chancy.find_jobs(JobFilter()) == []


@ON_OWN
async def test_many_jobs(chancy: Chancy, stack: AsyncStack) -> None:
    with suppress(Undo):
        async with stack.transaction():
            await chancy.push_many(
                (jobs.note.job(value=n) for n in range(COUNT)), within=stack.within
            )
            raise Undo
    assert (await chancy.counts()).get("async") is None
    async with stack.transaction():
        references = await chancy.push_many(
            (jobs.note.job(value=n) for n in range(COUNT)), within=stack.within
        )
        assert await references[0].get() is None
    found = await chancy.get_jobs([references[0].id, references[-1].id])
    assert [(job.arguments or {})["value"] for job in found.values()] == [0, COUNT - 1]
    assert (await chancy.counts())["async"].pending == COUNT


@ON_OWN
async def test_missing_tables_are_reported_as_such(chancy: Chancy, stack: AsyncStack) -> None:
    broker = chancy.control
    assert isinstance(broker, PostgresBroker)
    await broker.fetch("alter schema chancy rename to moved")
    with pytest.raises(SchemaMismatch, match="run `chancy migrate upgrade`"):
        async with stack.transaction():
            await chancy.push(jobs.note.job(value=1), within=stack.within)
    with pytest.raises(SchemaMismatch, match="run `chancy migrate upgrade`"):
        async with stack.transaction():
            await chancy.push_many([jobs.note.job(value=1)] * 2, within=stack.within)

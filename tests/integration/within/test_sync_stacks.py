"""Pushing within a transaction of each library for code without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from uuid import UUID

import pytest

from chancy import Chancy, Queue, SchemaMismatch, Worker
from chancy.broker.values import CHUNK
from chancy.worker.surveyor import Surveyor
from tests.integration.within.stacks import SYNC_STACKS, SyncStack, sqlstate
from tests.support import jobs
from tests.support.sql import ask
from tests.support.waiting import eventually, eventually_sync

#: Three statements of a bulk push.
COUNT = 2 * CHUNK + 1
#: For what `bind_sync` has no part in: the stacks over which the others lie.
OWN = ("psycopg connection", "Session", "Django's connection")
STACKS = [pytest.param(SYNC_STACKS[name], id=name) for name in OWN]
ON_OWN = pytest.mark.parametrize("stack", STACKS, indirect=True)

Opened = Callable[[str], AbstractContextManager[SyncStack]]


class Undo(Exception):
    """Ends a transaction without a commit."""


@pytest.fixture
def chancy(dsn: str) -> Iterator[Chancy]:
    with Chancy(dsn, pool_size=2) as made:
        yield made


@pytest.fixture(params=list(SYNC_STACKS.values()), ids=list(SYNC_STACKS))
def stack(request: pytest.FixtureRequest, dsn: str) -> Iterator[SyncStack]:
    with request.param(dsn) as opened:
        yield opened


def stored(dsn: str) -> list[UUID]:
    """The jobs in push order, as another session sees them."""
    return [id for (id,) in ask(dsn, "select id from chancy.jobs order by pos")]


def test_rollbacks_of_transactions_and_savepoints_take_their_jobs_along(
    chancy: Chancy, stack: SyncStack, dsn: str
) -> None:
    with suppress(Undo), stack.transaction():
        chancy.sync_push(jobs.note.job(value=1), within=stack.within)
        raise Undo
    assert stored(dsn) == []
    with stack.transaction():
        with suppress(Undo), stack.savepoint():
            chancy.sync_push(jobs.note.job(value=0), within=stack.within)
            raise Undo
        kept = chancy.sync_push(jobs.note.job(value=1), within=stack.within)
        with suppress(Undo), stack.savepoint():
            chancy.sync_push(jobs.note.job(value=2), within=stack.within)
            raise Undo
        with stack.savepoint():
            inner = chancy.sync_push(jobs.note.job(value=3), within=stack.within)
    assert stored(dsn) == [kept.id, inner.id]


@ON_OWN
def test_a_failed_transaction_gives_its_error(chancy: Chancy, stack: SyncStack, dsn: str) -> None:
    def fail() -> None:
        with stack.transaction():
            with suppress(Exception):
                stack.execute("select 1/0")
            chancy.sync_push(jobs.note.job(value=1), within=stack.within)

    with pytest.raises(stack.failed) as raised:
        fail()
    assert sqlstate(raised.value) == "25P02"
    assert stored(dsn) == []


@ON_OWN
def test_many_jobs(chancy: Chancy, stack: SyncStack, dsn: str) -> None:
    with suppress(Undo), stack.transaction():
        chancy.sync_push_many((jobs.note.job(value=n) for n in range(COUNT)), within=stack.within)
        raise Undo
    with stack.transaction():
        kept = chancy.sync_push_many(
            (jobs.note.job(value=n) for n in range(COUNT)), within=stack.within
        )
    assert stored(dsn) == [reference.id for reference in kept]


@pytest.mark.parametrize("opened", STACKS)
async def test_a_commit_wakes_a_worker(
    dsn: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For a second after a notice a worker looks often, and would find what none told of; so would
    # a survey.
    monkeypatch.setattr("chancy.worker.puller._LADDER_S", ())
    monkeypatch.setattr(Surveyor, "_pause_s", lambda *_: 3_600.0)
    jobs.noted.clear()
    # Without a notification nothing would be looked for in the time of this test.
    queues = [Queue(name="async", executor="async", poll_interval_s=60.0)]
    async with Chancy(dsn, queues=queues, pool_size=2) as chancy:
        await chancy.delete_queue("default")

        def push() -> None:
            with chancy, opened(dsn) as stack:
                for number in range(10):
                    with stack.transaction():
                        chancy.sync_push(jobs.note.job(number), within=stack.within)
                        assert stored(dsn) == []
                    eventually_sync(lambda: len(jobs.noted) > number)  # noqa: B023
                    eventually_sync(lambda: not stored(dsn))

        async with Worker(chancy) as worker:
            await eventually(lambda: worker.listening)
            await asyncio.to_thread(push)
    assert jobs.noted == list(range(10))


@ON_OWN
def test_missing_tables_are_reported_as_such(chancy: Chancy, stack: SyncStack, dsn: str) -> None:
    ask(dsn, "alter schema chancy rename to moved")
    with pytest.raises(SchemaMismatch, match="run `chancy migrate upgrade`"), stack.transaction():
        chancy.sync_push(jobs.note.job(value=1), within=stack.within)

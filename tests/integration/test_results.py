"""Getting back what jobs return, over a real database."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from chancy import (
    Chancy,
    Job,
    JobFailed,
    Queue,
    Reference,
    State,
    Worker,
    as_completed,
    gather,
    sync_as_completed,
    sync_gather,
)
from chancy.errors import BrokerUnavailable, ConfigurationError, JobError, WaitTimeout
from chancy.plugins.retry import Retries
from tests.support import jobs
from tests.support.command import inside
from tests.support.roles import roles
from tests.support.sql import count
from tests.support.waiting import eventually, eventually_sync

#: Nobody looks by itself for so long: what comes sooner was told.
SELDOM = Queue(name="async", executor="async", poll_interval_s=60)
LISTENERS = """
pg_stat_activity
where application_name = 'chancy waiting' and datname = current_database()
"""


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn, queues=[SELDOM], plugins=[Retries(False)]) as made:
        yield made


@pytest.mark.parametrize(
    ("task", "state"),
    [(jobs.note.job(1), State.SUCCEEDED), (jobs.fail.job(), State.FAILED)],
    ids=["note", "fail"],
)
async def test_a_settlement_ends_a_wait_without_polling(
    chancy: Chancy, dsn: str, monkeypatch: pytest.MonkeyPatch, task: Job, state: State
) -> None:
    for pause in ("_FIRST_POLL_S", "CompletionWaiter.listening_s", "_POLL_S"):
        monkeypatch.setattr(f"chancy.results.waiter.{pause}", 3_600.0)
    reference = await chancy.push(task)
    waiting = asyncio.create_task(reference.wait(30))
    await eventually(lambda: count(dsn, "chancy.awaited"))
    await eventually(lambda: count(dsn, LISTENERS))
    async with Worker(chancy):
        assert (await waiting).state is state
        assert count(dsn, LISTENERS) == 1
    await eventually(lambda: count(dsn, "chancy.awaited") == 0)


@pytest.mark.chaos
async def test_ten_thousand_wait_at_once_on_one_session(chancy: Chancy, dsn: str) -> None:
    references = await chancy.push_many(jobs.note.job(number) for number in range(10_000))
    gathering = asyncio.create_task(gather(references))
    await eventually(lambda: count(dsn, "chancy.awaited") == 10_000)
    await eventually(lambda: count(dsn, LISTENERS) == 1)
    async with Worker(chancy):
        assert await asyncio.wait_for(gathering, 60) == list(range(10_000))


async def test_a_job_is_waited_for_before_its_commit(chancy: Chancy, dsn: str) -> None:
    async with Worker(chancy):
        async with chancy.transaction() as transaction:
            reference = await chancy.push(jobs.note.job("soon"), within=transaction)
            waiting = asyncio.create_task(reference.result(60))
            await eventually(lambda: count(dsn, "chancy.awaited"))
        assert await waiting == "soon"


async def test_a_wait_for_a_pushed_job_that_is_gone_raises(chancy: Chancy, dsn: str) -> None:
    """Its queue keeps no finished jobs; the application was not waiting when it finished."""
    await chancy.declare(replace(SELDOM, keep_finished=False), upsert=True)
    with chancy:
        async with Worker(chancy):
            one = await chancy.push(jobs.note.job(1))
            references = [
                one,
                *await chancy.push_many([jobs.note.job(2)]),
                await asyncio.to_thread(chancy.sync_push, jobs.note.job(3)),
                *await asyncio.to_thread(chancy.sync_push_many, [jobs.note.job(4)]),
            ]
            await eventually(lambda: count(dsn, "chancy.jobs") == 0)
        async with asyncio.timeout(60):
            for reference in references:
                with pytest.raises(JobError, match="is gone"):
                    await reference.result()
            with pytest.raises(JobError, match="is gone"):
                await gather(references)
            with pytest.raises(JobError, match="is gone"):
                await anext(as_completed(references))
            with pytest.raises(JobError, match="is gone"):
                await asyncio.to_thread(one.sync_wait)
            with pytest.raises(JobError, match="is gone"):
                await asyncio.to_thread(sync_gather, references)
            with pytest.raises(JobError, match="is gone"):
                await asyncio.to_thread(next, sync_as_completed(references))
            with pytest.raises(JobError, match="is gone"):
                await chancy.wait_for(one.id, stored=True)
            with pytest.raises(WaitTimeout, match="is not there"):
                await chancy.wait_for(one.id, timeout_s=0)


async def test_the_text_of_an_id_is_refused_and_others_wait_on(chancy: Chancy) -> None:
    async with Worker(chancy):
        done = await chancy.push(jobs.note.job(1))
        await done.wait(60)
        text: Any = str(done.id)  # which a driver would find, and nobody below its text
        nothing: Any = None
        waiting = asyncio.create_task((await chancy.push(jobs.note.job("soon"))).result(60))
        calls: list[Callable[[Any], Awaitable[object]]] = [
            chancy.get_job, chancy.wait_for, chancy.cancel, chancy.run_now, chancy.why,
            lambda id: chancy.get_jobs([id]),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(TypeError, match=f"UUID, not '{text}' of the type str"):
                await call(text)
        assert await waiting == "soon"
    with chancy:
        for look in (chancy.sync_get_job, chancy.sync_wait_for, chancy.sync_begin_wait):
            with pytest.raises(TypeError, match="of the type NoneType"):
                look(nothing)


@pytest.mark.parametrize("timeout_s", [float("nan"), "1", True])
async def test_a_timeout_that_is_no_number_is_refused(chancy: Chancy, timeout_s: Any) -> None:
    waits = Reference(uuid.uuid4(), chancy)
    with pytest.raises(ConfigurationError, match=r"timeout_s=.* must be a number of seconds"):
        await waits.wait(timeout_s)
    with chancy, pytest.raises(ConfigurationError, match=r"timeout_s=.* must be a number"):
        waits.sync_wait(timeout_s)
    with pytest.raises(WaitTimeout):
        await waits.wait(-1)


async def test_an_application_that_is_not_open_cannot_wait(dsn: str) -> None:
    with pytest.raises(BrokerUnavailable, match="is not open"):
        async with asyncio.timeout(10):
            await Chancy(dsn).wait_for(uuid.uuid4())


async def test_a_role_that_may_only_read_polls(
    chancy: Chancy, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"reader_{uuid.uuid4().hex}"
    with roles(dsn, [role]), psycopg.connect(dsn, autocommit=True) as session:
        session.execute(f"grant usage on schema chancy to {role}".encode())
        session.execute(f"grant select on all tables in schema chancy to {role}".encode())
        reference = await chancy.push(jobs.note.job.with_delay(0.5)("seen"))
        as_role = make_conninfo(dsn, options=f"-c role={role}")
        async with Chancy(as_role) as reader, Worker(chancy):
            assert (await reader.wait_for(reference.id, 30)).result == "seen"
    assert "waiting_by_polling" in caplog.text


async def test_a_session_that_may_only_read_polls(
    chancy: Chancy, dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another server might take the push: it is repeated for as long.
    monkeypatch.setattr("chancy.postgres.push.coalescing.PATIENCE_S", 0.5)
    read_only = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    async with Chancy(read_only) as reader, Worker(chancy):
        for text in ("one", "two"):
            reference = await chancy.push(jobs.note.job.with_delay(0.2)(text))
            assert (await reader.wait_for(reference.id, 30)).result == text
        with pytest.raises(BrokerUnavailable, match="default_transaction_read_only is on"):
            await reader.push(jobs.note.job("three"))
    assert caplog.text.count("waiting_by_polling") == 1


# Without an event loop


@contextmanager
def working(dsn: str) -> Generator[None]:
    """A worker in another thread."""
    stop = threading.Event()
    ready = threading.Event()

    def wait() -> None:
        ready.set()
        stop.wait()

    def work() -> None:
        async def main() -> None:
            app = Chancy(dsn, queues=[SELDOM], plugins=[Retries(False)])
            async with app as chancy, Worker(chancy):
                await asyncio.to_thread(wait)

        asyncio.run(main())

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        stop.set()
        worker.join()


def listens() -> bool:
    return any(one.name == "chancy calls" for one in threading.enumerate())


def test_threads_wait_on_one_session(dsn: str) -> None:
    with working(dsn):
        with Chancy(dsn) as chancy:
            references = chancy.sync_push_many(jobs.note.job(number) for number in range(40))
            with ThreadPoolExecutor(8) as threads:
                results = list(threads.map(lambda one: one.sync_result(60), references))
            assert results == list(range(40))
            assert count(dsn, LISTENERS) == 1
            failing = chancy.sync_push(jobs.fail.job("no"))
            with pytest.raises(JobFailed, match="no"):
                failing.sync_result(60)
        assert not listens()
        # The server's process ends a little later than its client's call.
        eventually_sync(lambda: count(dsn, LISTENERS) == 0)


def test_one_thread_waits_for_many(dsn: str) -> None:
    """Without a thread for each of them."""
    with working(dsn), Chancy(dsn) as chancy:
        references = chancy.sync_push_many(jobs.note.job(number) for number in range(1_000))
        before = threading.active_count()
        assert sync_gather(references, timeout_s=30) == list(range(1_000))
        assert threading.active_count() <= before + 1
        assert count(dsn, LISTENERS) == 1
        later = chancy.sync_push(jobs.note.job.with_hold("later")("later"))
        first = chancy.sync_push(jobs.note.job("first"))
        completed = sync_as_completed([later, first], timeout_s=30)
        assert next(completed).sync_result() == "first"
        inside("job", "release", later.id, dsn=dsn)
        assert [one.sync_result() for one in completed] == ["later"]
        failing = chancy.sync_push(jobs.fail.job("no"))
        never = chancy.sync_push(jobs.note.job.with_delay(3600)("never"))
        with pytest.raises(JobFailed, match="no"):
            sync_gather([never, failing])
        chancy.sync_push(jobs.note.job(1)).sync_result(60)
        eventually_sync(lambda: count(dsn, "chancy.awaited") == 0)


def test_an_application_that_is_closed_ends_the_waits_for_many(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Chancy(dsn) as chancy:
        chancy.sync_declare(SELDOM)
        first, *rest = (chancy.sync_push(jobs.note.job(number)) for number in range(20))
        with working(dsn):
            first.sync_wait(60)
            sync_gather(rest, 20)
        late = [chancy.sync_push(jobs.note.job.with_delay(3600)(n)) for n in range(20)]
        completed = sync_as_completed([first, *late])
        assert next(completed) == first
    with pytest.raises(BrokerUnavailable, match="the application was closed"):
        next(completed)
    abandoned = sync_as_completed([first, *late])
    with chancy:
        assert next(abandoned) == first
        eventually_sync(lambda: count(dsn, LISTENERS) == 1)
    abandoned.close()
    assert not listens()
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


def test_sync_calls_after_a_with_block_are_refused(dsn: str) -> None:
    with Chancy(dsn) as chancy:
        reference = chancy.sync_push(jobs.note.job(0))
    with pytest.raises(ConfigurationError, match="inside such a block"):
        chancy.sync_wait_for(reference.id)
    with pytest.raises(ConfigurationError, match="inside such a block"):
        sync_gather([reference])

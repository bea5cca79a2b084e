"""A worker that serves queues of two brokers at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import psycopg
import pytest

from chancy import Chancy, Job, Queue, State, Worker
from chancy.plugin.plugin import Plugin
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries
from chancy.postgres.schema import migrate
from chancy.retry import Exponential
from tests.support import jobs
from tests.support.two_brokers import SecondPostgres, TwoBrokers
from tests.support.waiting import eventually

QUEUES = [
    Queue(name="async", executor="async"),
    Queue(name="far", executor="async", broker="memory"),
]
BOTH = ("async", "far")


@pytest.fixture
def two() -> TwoBrokers:
    return TwoBrokers()


@pytest.fixture
async def chancy(dsn: str, two: TwoBrokers) -> AsyncIterator[Chancy]:
    jobs.noted.clear()
    jobs.started.clear()
    plugins = [Retries(Exponential(base_s=0.05)), Recovery(sweep_s=0.2), two]
    async with Chancy(dsn, queues=QUEUES, plugins=plugins, pool_size=3) as made:
        await made.delete_queue("default")
        yield made


def note(queue: str, value: object = 0) -> Job[object]:
    return jobs.note.job(value=value).with_queue(queue)


async def test_both_queues_are_served(chancy: Chancy, two: TwoBrokers) -> None:
    async with Worker(chancy) as worker:
        assert worker.queues == BOTH
        references = await chancy.push_many(note(BOTH[n % 2], n) for n in range(500))
        await eventually(lambda: len(jobs.noted) == 500)
        assert [await one.result(30) for one in references[:4]] == [0, 1, 2, 3]
    assert not two.store.live
    assert len(two.store.finished) == 250
    assert worker.settled == 500


async def test_a_failure_is_retried_and_filed(chancy: Chancy) -> None:
    async with Worker(chancy):
        failing = jobs.fail.job(message="oops").with_queue("far").with_max_attempts(3)
        found = await (await chancy.push(failing)).wait(30)
    assert (found.state, found.attempt) == (State.FAILED, 3)
    assert [error["message"] for error in found.errors] == ["oops"] * 3


async def test_a_running_job_is_cancelled(chancy: Chancy) -> None:
    async with Worker(chancy):
        reference = await chancy.push(jobs.wait_for_ever.job().with_queue("far"))
        await eventually(jobs.started.is_set)
        await chancy.cancel(reference.id)
        assert (await reference.wait(30)).state is State.CANCELLED


async def test_jobs_that_are_due_later_run(chancy: Chancy) -> None:
    async with Worker(chancy):
        soon = timedelta(seconds=0.3)
        found = [await chancy.push(note(queue, queue).with_delay(soon)) for queue in BOTH]
        assert [await one.result(30) for one in found] == list(BOTH)


async def test_a_job_in_postgres_of_a_queue_elsewhere_runs(
    chancy: Chancy, dsn: str, two: TwoBrokers
) -> None:
    async with Chancy(dsn, pool_size=1) as unknowing, Worker(chancy):
        stray = await unknowing.push(note("far", "stray"))
        assert await stray.result(30) == "stray"
        failing = jobs.fail.job().with_queue("far").with_max_attempts(2)
        assert (await (await unknowing.push(failing)).wait(30)).attempt == 2
        saying = await unknowing.push(jobs.wait_for_ever.job().with_queue("far"))
        await eventually(jobs.started.is_set)
        assert await chancy.cancel(saying.id)
        assert (await saying.wait(30)).state is State.CANCELLED
    assert not two.store.finished


async def test_a_pause_in_the_row_holds_the_other_broker(chancy: Chancy, two: TwoBrokers) -> None:
    await chancy.declare(QUEUES[1])
    await chancy.pause_queue("far")
    await chancy.push(note("far"))
    async with Worker(chancy):
        near = await chancy.push(note("async"))
        await near.wait(30)
        assert two.funcs == ["note"]
        await chancy.resume_queue("far")
        await eventually(lambda: not two.store.live)


async def test_burst_ends_when_both_are_empty(chancy: Chancy, two: TwoBrokers) -> None:
    for queue in QUEUES:
        await chancy.declare(queue)
    await chancy.push_many(note(queue) for queue in BOTH * 10)
    async with Worker(chancy, burst=True) as worker:
        await asyncio.wait_for(worker.wait_for_shutdown(), 30)
    assert len(jobs.noted) == 20


# When one of them is away


@asynccontextmanager
async def working(chancy: Chancy) -> AsyncGenerator[Worker]:
    async with Worker(chancy, heartbeat_s=0.2, heartbeat_timeout_s=15.0) as worker:
        yield worker


async def test_an_outage_of_the_other_broker_leaves_postgres_going(
    chancy: Chancy, two: TwoBrokers
) -> None:
    async with working(chancy):
        far = await chancy.push(jobs.nap.job(seconds=0.2).with_queue("far"))
        await eventually(lambda: jobs.noted == [0.2])
        two.away = True
        for n in range(3):
            near = await chancy.push(note("async", n))
            assert await near.result(30) == n
        # It has ended, and cannot be settled yet.
        two.away = False
        assert (await far.wait(30)).state is State.SUCCEEDED
        again = await chancy.push(note("far", "again"))
        assert await again.result(30) == "again"


async def test_a_worker_starts_while_the_other_broker_is_unavailable(
    chancy: Chancy, two: TwoBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.worker.worker._QUEUES_EVERY_S", 0.5)
    two.away = True
    async with working(chancy) as worker:
        near = await chancy.push(note("async", "near"))
        assert await near.result(30) == "near"
        assert worker.queues == ("async",)
        (record,) = await chancy.get_workers()
        assert "the other broker is away" in record.broken["far"]
        two.away = False
        far = await chancy.push(note("far", "far"))
        assert await far.result(30) == "far"


async def test_jobs_of_a_worker_that_is_gone_are_rescued(chancy: Chancy, two: TwoBrokers) -> None:
    far = await chancy.push(note("far", "rescued"))
    async with working(chancy):
        await eventually(lambda: "rescued" in jobs.noted)
        await far.wait(30)
        (row,) = two.store.finished.values()
        # As if another worker held it and died.
        row.state = State.RUNNING
        two.store.live[far.id] = two.store.finished.pop(far.id)
        row.worker_id = far.id
        found = await chancy.wait_for(far.id, 30)
        assert (found.state, found.crashes) == (State.SUCCEEDED, 1)


async def test_a_worker_without_the_plugin_does_not_serve_the_queue(
    chancy: Chancy, dsn: str
) -> None:
    await chancy.declare(QUEUES[1])
    async with Chancy(dsn, queues=QUEUES[:1], pool_size=2) as without:
        await without.delete_queue("default")
        async with Worker(without, queues=["*"]) as worker:
            assert worker.queues == ("async",)
            (record,) = await without.get_workers()
            assert "broker 'memory', which no plugin" in record.broken["far"]


# A second Postgres

IN_SECOND = Queue(name="far", executor="async", broker="second", poll_interval_s=0.05)
WITHOUT_NOTICE = """
insert into chancy.jobs (id, pos, state, queue, func, arguments)
values (gen_random_uuid(), nextval('chancy.positions'), 0, 'far', 'tests.support.jobs.note',
  '{"value": "unheard"}')
"""


@asynccontextmanager
async def on_two_servers(dsn: str, second: str, *plugins: Plugin) -> AsyncGenerator[Chancy]:
    jobs.noted.clear()
    jobs.started.clear()
    migrate.upgrade(second)
    queues, served = [QUEUES[0], IN_SECOND], [SecondPostgres(second), *plugins]
    async with Chancy(dsn, queues=queues, plugins=served, no_default_plugins=True) as chancy:
        await chancy.delete_queue("default")
        yield chancy


async def test_a_second_postgres_is_surveyed(dsn: str, empty_dsn: str) -> None:
    async with on_two_servers(dsn, empty_dsn) as chancy, Worker(chancy) as worker:
        with psycopg.connect(empty_dsn, autocommit=True) as second:

            def announced() -> bool:
                row = second.execute("select queues from chancy.workers").fetchone()
                return row == (["far"],)

            await eventually(announced)
            puller = worker._queue_set._serving["far"].puller
            await eventually(lambda: puller.resting)
            second.execute(WITHOUT_NOTICE.encode())
            await eventually(lambda: jobs.noted == ["unheard"])

            running = await chancy.push(jobs.wait_for_ever.job().with_queue("far"))
            await eventually(jobs.started.is_set)
            second.execute("update chancy.jobs set stop_asked_at = now()")  # without a notification
            assert (await running.wait(30)).state is State.CANCELLED


async def test_plugins_write_in_the_transactions_of_the_control_broker_alone(
    dsn: str, empty_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    letters = DeadLetters()
    async with on_two_servers(dsn, empty_dsn, letters) as chancy, Worker(chancy):
        failing = jobs.fail.job().with_max_attempts(1)
        far, near = await chancy.push_many([failing.with_queue("far"), failing])
        assert [(await one.wait(30)).state for one in (far, near)] == [State.FAILED] * 2
        assert [letter.id for letter in await letters.find(chancy)] == [near.id]
    logged = [line for line in caplog.messages if "hook_failed" in line]
    assert not logged

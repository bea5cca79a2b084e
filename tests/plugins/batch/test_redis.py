"""Batches with jobs and callbacks in queues in Redis."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from chancy import JobFilter, State
from chancy.plugins.batch import Batch, Batches, BatchState
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.redis import RedisPlugin
from chancy.routing.router import RoutedBroker
from tests.plugins.batch import jobs as batch_jobs
from tests.plugins.batch.batching import callbacks, called, counts, eventually_counts
from tests.plugins.batch.jobs import act as numbered
from tests.plugins.batch.jobs import adding, failing, held, ran, retried, said, winding
from tests.plugins.batch.two_stores import act, application, call, there, worker, working
from tests.support.postgres_fixtures import template_with
from tests.support.redis_fixtures import RedisServer
from tests.support.sql import ask
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, template: str) -> str:
    return template_with(pytestconfig, template, RedisPlugin(), Batches())


async def test_jobs_of_both_brokers_count(dsn: str, redis_url: str) -> None:
    batches, to = Batches(), said.job("on")
    batch = Batch(name="b", on_success=there(to), on_failure=to, on_finish=there(to, "brief"))
    async with working(dsn, redis_url, batches) as chancy:
        assert isinstance(chancy.broker, RoutedBroker)
        jobs = [there(numbered.job(n), ("fast", "brief", "async")[n % 3]) for n in range(30)]
        reference = await batches.push(chancy, batch, [*jobs, there(retried.job(99))])
        assert await reference.wait(20) is BatchState.SUCCEEDED
        assert await counts(reference) == (0, 31, 0, 0)
        await eventually(lambda: len(ran) == 35)
        assert sorted(one for one in ran if one.startswith("on ")) == ["on finish", "on success"]
        found = await chancy.broker.brokers.ready("redis")
        assert await found.find(JobFilter()) == [], "they are settled with their outcome"


async def test_replaying_a_failed_redis_job_completes_the_batch(dsn: str, redis_url: str) -> None:
    batches, letters = Batches(), DeadLetters()
    failing.add(1)
    async with working(dsn, redis_url, batches) as chancy:
        jobs = [there(numbered.job(1)), numbered.job(2)]
        reference = await batches.push(chancy, callbacks(), jobs)
        assert await reference.wait(10) is BatchState.FAILED
        assert await called(dsn) == ["on failure", "on finish"]
        ((id, state),) = await reference.bad()
        assert state is State.FAILED

        async def filed() -> bool:
            return await letters.get(chancy, id) is not None

        await eventually(filed)
        failing.clear()
        assert await letters.replay(chancy, id)
        await eventually_counts(reference, (0, 2, 0, 0))
        assert await reference.wait(10) is BatchState.SUCCEEDED
        assert await called(dsn) == ["on failure", "on finish", "on success"]


async def test_events_without_an_end_count_once(
    dsn: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.worker.meta_writer.EVERY_S", 0.002)
    batches = Batches(sweep_s=3600)
    async with working(dsn, redis_url, batches) as chancy:
        jobs = [there(winding.job(1), "fast"), there(winding.job(2), "brief")]
        reference = await batches.push(chancy, callbacks(), jobs)
        assert await reference.wait(20) is BatchState.SUCCEEDED
        assert await called(dsn) == ["on finish", "on success"]
        assert sorted(ran)[:6] == ["1"] * 3 + ["2"] * 3
        assert await chancy.find_jobs(JobFilter(queue="brief")) == [], "it keeps nothing"


async def test_jobs_count_once_if_their_worker_is_killed_while_it_settles_them(
    dsn: str, redis_url: str, tmp_path: Path
) -> None:
    batches, book = Batches(sweep_s=0.2), tmp_path / "book"
    to = there(call.job(str(book)))
    batch = Batch(name="b", on_success=to, on_failure=to, on_finish=to)
    async with application(dsn, redis_url, batches) as chancy:
        jobs = [there(act.job(str(book), name)) for name in ("a", "b")]
        reference = await batches.push(chancy, batch, jobs)
        program = "import asyncio, sys; from tests.plugins.batch import two_stores as it; "
        program += "asyncio.run(it.die(*sys.argv[1:]))"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, dsn, redis_url
        )
        assert await process.wait() == -signal.SIGKILL
        assert await counts(reference) == (2, 0, 0, 0)
        async with worker(chancy, heartbeat_timeout_s=2.0):
            assert await reference.wait(20) is BatchState.SUCCEEDED
            assert await counts(reference) == (0, 2, 0, 0)
            await eventually(lambda: "success" in book.read_text())
    entered = book.read_text().split()
    assert {"a", "b"} <= set(entered)
    assert [entered.count(on) for on in ("finish", "success", "failure")] == [1, 1, 0]


async def test_a_job_cancelled_before_its_start_never_runs(dsn: str, redis_url: str) -> None:
    batches = Batches(sweep_s=0.1)
    async with application(dsn, redis_url, batches) as chancy:
        jobs = [there(numbered.job(n)) for n in (1, 2)]
        reference = await batches.push(chancy, callbacks(), jobs)
        assert await reference.cancel()
        assert await counts(reference) == (0, 0, 0, 2)
        async with worker(chancy):
            assert await reference.wait(10) is BatchState.CANCELLED
            assert await called(dsn) == ["on finish"]
        assert ran == ["on finish"]


async def test_cancelling_a_batch_stops_its_running_redis_jobs(dsn: str, redis_url: str) -> None:
    batches = Batches()
    async with working(dsn, redis_url, batches) as chancy:
        late = there(numbered.job(2)).with_delay(timedelta(hours=1))
        reference = await batches.push(chancy, callbacks(), [there(held.job(1)), late])
        await eventually(lambda: ran == ["1"])
        assert await reference.cancel()
        assert await reference.wait(10) is BatchState.CANCELLED
        assert await counts(reference) == (0, 0, 0, 2)


async def test_a_job_of_a_redis_queue_adds_jobs(dsn: str, redis_url: str) -> None:
    batches = Batches()
    async with working(dsn, redis_url, batches) as chancy:
        batch_jobs.apps.append((chancy, batches))
        reference = await batches.push(chancy, Batch(name="b"), [there(adding.job(0, 2))])
        assert await reference.wait(10) is BatchState.SUCCEEDED
        assert await counts(reference) == (0, 3, 0, 0)


async def test_an_open_batch_gets_jobs_of_redis_queues(dsn: str, redis_url: str) -> None:
    batches = Batches()
    async with working(dsn, redis_url, batches) as chancy:
        reference = await batches.push(chancy, callbacks(may_grow=True), [])
        assert await reference.add([there(numbered.job(n)) for n in range(3)]) == 3
        await eventually(lambda: len(ran) == 3)
        await reference.close()
        assert await reference.wait(10) is BatchState.SUCCEEDED
        assert await called(dsn) == ["on finish", "on success"]


@pytest.mark.chaos
async def test_callbacks_wait_for_a_redis_that_is_unavailable(
    dsn: str, own_redis: Callable[..., RedisServer]
) -> None:
    batches, server = Batches(sweep_s=0.2), own_redis(appendonly="yes")
    to = there(said.job("on"))
    batch = Batch(name="b", on_success=to, on_finish=to)
    async with working(dsn, server.url, batches) as chancy:
        first = await batches.push(chancy, Batch(name="first"), [there(numbered.job(1))])
        assert await first.wait(10) is BatchState.SUCCEEDED
        server.kill()
        jobs = [numbered.job(2), there(numbered.job(3))]
        reference = await batches.push(chancy, batch, jobs)
        other = await batches.push(chancy, Batch(name="other", on_finish=to), [numbered.job(4)])
        await eventually_counts(reference, (1, 1, 0, 0))
        assert await other.wait(10) is BatchState.SUCCEEDED
        assert len(ask(dsn, "select id from chancy.jobs where queue = 'fast'")) == 2
        server.start()
        assert await reference.wait(20) is BatchState.SUCCEEDED
        await eventually(lambda: len(ran) == 7)
    assert sorted(ran) == ["1", "2", "3", "4", "on finish", "on finish", "on success"]

"""Batches some of whose jobs and callbacks are in queues of Redis."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path

import pytest

from chancy import BrokerUnavailable, JobFilter, State, Worker
from chancy.plugin.tracking import GONE_S
from chancy.plugins.batch import Batch, Batches, BatchState
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.outcomes import BatchJobOutcome
from chancy.plugins.dead_letter import DeadLetters
from chancy.testing.clock import ManualClock
from tests.plugins.batch import jobs as batch_jobs
from tests.plugins.batch.batching import callbacks, called, counts, eventually_counts, sweep_of
from tests.plugins.batch.jobs import act as numbered
from tests.plugins.batch.jobs import adding, failing, held, ran, retried, said, winding
from tests.plugins.batch.two_stores import Mute, act, application, call, there, working
from tests.plugins.workflow.running import execute
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

LONG = pytest.mark.chaos

OUTBOX = "select id from chancy.redis_outbox"
AWAY = "select job_id from chancy.batches_jobs where away"


async def test_jobs_of_both_brokers_count(dsn: str, redis_url: str) -> None:
    batches, to = Batches(), said.job("on")
    batch = Batch(name="b", on_success=there(to), on_failure=to, on_finish=there(to, "brief"))
    async with working(dsn, redis_url, batches) as chancy:
        jobs = [there(numbered.job(n), ("fast", "brief", "async")[n % 3]) for n in range(30)]
        reference = await batches.push(chancy, batch, [*jobs, there(retried.job(99))])
        assert await reference.finished(20) is BatchState.SUCCEEDED
        assert await counts(reference) == (0, 31, 0, 0)
        await eventually(lambda: len(ran) == 35)
        assert sorted(one for one in ran if one.startswith("on ")) == ["on finish", "on success"]
    assert execute(dsn, AWAY) == []


async def test_one_in_redis_fails_and_its_replay_mends_the_batch(dsn: str, redis_url: str) -> None:
    batches, letters = Batches(), DeadLetters()
    failing.add(1)
    async with working(dsn, redis_url, batches) as chancy:
        jobs = [there(numbered.job(1)), numbered.job(2)]
        reference = await batches.push(chancy, callbacks(), jobs)
        assert await reference.finished(10) is BatchState.FAILED
        assert await called(dsn) == ["on failure", "on finish"]
        ((id, state),) = await reference.bad()
        assert state is State.FAILED

        async def filed() -> bool:
            return await letters.get(chancy, id) is not None

        await eventually(filed)
        failing.clear()
        assert await letters.replay(chancy, id)
        await eventually_counts(reference, (0, 2, 0, 0))
        assert await reference.finished(10) is BatchState.SUCCEEDED
        assert await called(dsn) == ["on failure", "on finish", "on success"]


async def test_those_that_go_on_and_on_count_at_once(
    dsn: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.worker.meta_writer.EVERY_S", 0.002)
    monkeypatch.setattr("chancy.plugins.redis.jobs.meta.MOST", 3)
    batches = Batches(sweep_s=3600)
    async with working(dsn, redis_url, batches) as chancy:
        jobs = [there(winding.job(1), "fast"), there(winding.job(2), "brief")]
        reference = await batches.push(chancy, callbacks(), jobs)
        assert await reference.finished(5) is BatchState.SUCCEEDED
        assert await called(dsn) == ["on finish", "on success"]
        assert sorted(ran)[:6] == ["1"] * 3 + ["2"] * 3
        # Also where the queue keeps nothing else: somebody else may have to tell it.
        found = await chancy.find_jobs(JobFilter(queue="brief"))
        assert [one.state for one in found if "batch" in one.meta] == [State.SUCCEEDED]


@pytest.mark.parametrize("queue", [pytest.param("fast", marks=LONG), "brief"])
async def test_the_sweep_counts_what_redis_alone_knows(
    dsn: str, redis_url: str, queue: str
) -> None:
    batches = Mute()
    failing.add(2)
    async with working(dsn, redis_url, batches) as chancy:
        jobs = [there(numbered.job(n), queue) for n in (1, 2)]
        reference = await batches.push(chancy, callbacks(), jobs)
        sweep, ids = sweep_of(chancy), [row[0] for row in execute(dsn, AWAY)]

        async def ended() -> bool:
            found = (await chancy.broker.get(ids)).values()
            return [one.state.final for one in found] == [True, True]

        await eventually(ended)
        # Whoever ran them may be about to tell.
        assert await sweep.turn() == 0
        assert await counts(reference) == (2, 0, 0, 0)
        assert await sweep.turn() == 2
        assert await sweep.turn() == 0
        assert await counts(reference) == (0, 1, 1, 0)
        assert await reference.finished(10) is BatchState.FAILED
        assert await called(dsn) == ["on failure", "on finish"]


@pytest.mark.parametrize("queue", ["fast", pytest.param("brief", marks=LONG)])
async def test_jobs_count_once_if_their_worker_is_killed_before_it_tells(
    dsn: str, redis_url: str, tmp_path: Path, queue: str
) -> None:
    batches, book = Batches(sweep_s=0.2), tmp_path / "book"
    to = there(call.job(str(book)), queue)
    batch = Batch(name="b", on_success=to, on_failure=to, on_finish=to)
    async with application(dsn, redis_url, batches) as chancy:
        jobs = [there(act.job(str(book), name), queue) for name in ("a", "b")]
        reference = await batches.push(chancy, batch, jobs)
        program = "import asyncio, sys; from tests.plugins.batch import two_stores as it; "
        program += "asyncio.run(it.die(*sys.argv[1:]))"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, dsn, redis_url
        )
        assert await process.wait() == -signal.SIGKILL
        assert await counts(reference) == (2, 0, 0, 0)
        async with Worker(chancy):
            assert await reference.finished(20) is BatchState.SUCCEEDED
            await eventually(lambda: len(book.read_text().split()) == 4)
    assert sorted(book.read_text().split()) == ["a", "b", "finish", "success"]
    assert execute(dsn, AWAY) == []


async def test_a_job_that_redis_has_lost_counts_as_failed(
    dsn: str, redis_url: str, redis_server: RedisServer
) -> None:
    async with working(dsn, redis_url, Mute()) as chancy:
        reference = await Batches().push(chancy, callbacks(), [there(held.job(1))])
        clock = ManualClock()
        sweep = sweep_of(chancy, clock=clock)
        await eventually(lambda: ran == ["1"])
        assert await sweep.turn() == 0
        redis_server.flush()
        assert await sweep.turn() == 0
        clock.advance(GONE_S - 1)
        assert await sweep.turn() == 0, "its worker may be about to tell"
        clock.advance(1)
        assert await sweep.turn() == 1
        assert await counts(reference) == (0, 0, 1, 0)
        batch_jobs.gate.set()


async def test_nothing_is_taken_for_lost_on_its_way(dsn: str, redis_url: str) -> None:
    batches = Batches()
    async with application(dsn, redis_url, batches) as chancy:
        reference = await batches.push(chancy, Batch(name="b"), [there(numbered.job(1))])
        assert len(execute(dsn, OUTBOX)) == 1
        sweep = sweep_of(chancy)
        assert [await sweep.turn() for _ in range(3)] == [0, 0, 0]
        assert await counts(reference) == (1, 0, 0, 0)
        async with Worker(chancy):
            assert await reference.finished(10) is BatchState.SUCCEEDED


@pytest.mark.chaos
async def test_what_is_cancelled_on_its_way_never_begins(dsn: str, redis_url: str) -> None:
    batches = Batches(sweep_s=0.1)
    async with application(dsn, redis_url, batches) as chancy:
        jobs = [there(numbered.job(n)) for n in (1, 2)]
        reference = await batches.push(chancy, callbacks(), jobs)
        # A relay has taken this one, and is about to push it.
        taken = "update chancy.redis_outbox set taken_until = now() + interval '2 seconds' "
        execute(dsn, taken + "where pos = (select max(pos) from chancy.redis_outbox)")
        assert await reference.cancel()
        assert len(execute(dsn, OUTBOX)) == 1
        assert await counts(reference) == (1, 0, 0, 1)
        execute(dsn, "update chancy.redis_outbox set run_at = now() + interval '1 hour'")
        async with Worker(chancy):
            assert await reference.finished(10) is BatchState.CANCELLED
            assert await called(dsn) == ["on finish"]
        assert await counts(reference) == (0, 0, 0, 2)
        assert ran == ["on finish"]


async def test_what_runs_in_redis_is_stopped_when_its_batch_is_cancelled(
    dsn: str, redis_url: str
) -> None:
    batches = Batches()
    async with working(dsn, redis_url, batches) as chancy:
        late = there(numbered.job(2)).with_run_at(timedelta(hours=1))
        reference = await batches.push(chancy, callbacks(), [there(held.job(1)), late])
        await eventually(lambda: ran == ["1"] and not execute(dsn, OUTBOX))
        assert await reference.cancel()
        assert await reference.finished(10) is BatchState.CANCELLED
        assert await counts(reference) == (0, 0, 0, 2)


async def test_a_job_in_redis_adds_none(dsn: str, redis_url: str) -> None:
    batches = Batches()
    async with working(dsn, redis_url, batches) as chancy:
        batch_jobs.apps.append((chancy, batches))
        reference = await batches.push(chancy, Batch(name="b"), [there(adding.job(0, 1))])
        assert await reference.finished(10) is BatchState.FAILED
        ((id, _),) = await reference.bad()
        (found,) = (await chancy.broker.get([id])).values()
        assert "use a queue in Postgres, or an open batch" in found.errors[-1]["message"]


async def test_an_open_batch_gets_jobs_of_redis(dsn: str, redis_url: str) -> None:
    batches = Batches()
    async with working(dsn, redis_url, batches) as chancy:
        reference = await batches.push(chancy, callbacks(may_grow=True), [])
        assert await reference.add([there(numbered.job(n)) for n in range(3)]) == 3
        await eventually(lambda: len(ran) == 3)
        await reference.close()
        assert await reference.finished(10) is BatchState.SUCCEEDED
        assert await called(dsn) == ["on finish", "on success"]


@pytest.mark.chaos
async def test_callbacks_wait_for_a_redis_that_is_away(
    dsn: str, own_redis: Callable[..., RedisServer]
) -> None:
    batches, server = Batches(sweep_s=0.2), own_redis(appendonly="yes")
    to = there(said.job("on"))
    batch = Batch(name="b", on_success=to, on_finish=to)
    async with working(dsn, server.url, batches) as chancy:
        first = await batches.push(chancy, Batch(name="first"), [there(numbered.job(1))])
        assert await first.finished(10) is BatchState.SUCCEEDED
        server.kill()
        jobs = [numbered.job(2), there(numbered.job(3))]
        reference = await batches.push(chancy, batch, jobs)
        other = await batches.push(chancy, Batch(name="other", on_finish=to), [numbered.job(4)])
        await eventually_counts(reference, (1, 1, 0, 0))
        assert await other.finished(10) is BatchState.SUCCEEDED
        assert len(execute(dsn, OUTBOX)) == 2
        server.start()
        assert await reference.finished(20) is BatchState.SUCCEEDED
        await eventually(lambda: len(ran) == 7)
    assert sorted(ran) == ["1", "2", "3", "4", "on finish", "on finish", "on success"]


async def test_ends_wait_for_a_postgres_that_is_away(
    dsn: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, refused = BatchCalls.settle, 0

    async def settle(calls: BatchCalls, ends: Iterable[BatchJobOutcome]) -> None:
        nonlocal refused
        those = list(ends)
        if those and refused < 3:
            refused += 1
            raise BrokerUnavailable("the database is away")
        await real(calls, those)

    monkeypatch.setattr(BatchCalls, "settle", settle)
    batches = Batches(sweep_s=3600)
    async with working(dsn, redis_url, batches) as chancy:
        jobs = [there(numbered.job(n)) for n in (1, 2)]
        reference = await batches.push(chancy, callbacks(), jobs)
        assert await reference.finished(20) is BatchState.SUCCEEDED
        assert await called(dsn) == ["on finish", "on success"]
    assert refused == 3


async def test_the_sweep_comes_to_all_however_many_there_are(
    dsn: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugins.batch.tracking.PAGE_SIZE", 4)
    batches = Mute()
    async with working(dsn, redis_url, batches) as chancy:
        jobs = [there(numbered.job(n)) for n in range(10)]
        reference = await batches.push(chancy, Batch(name="b"), jobs)
        await eventually(lambda: len(ran) == 10)
        ids = [row[0] for row in execute(dsn, AWAY)]

        async def ended() -> bool:
            return all(one.state.final for one in (await chancy.broker.get(ids)).values())

        await eventually(ended)
        sweep = sweep_of(chancy)
        # Each part is looked at twice.
        assert [await sweep.turn() for _ in range(6)] == [0, 4, 0, 4, 0, 2]
        assert await counts(reference) == (0, 10, 0, 0)
        assert [await sweep.turn() for _ in range(2)] == [0, 0]

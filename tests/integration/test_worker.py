"""A worker runs what is pushed, by the right executor, and ends in good order."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from chancy import Chancy, GlobalConcurrency, Queue, RateLimit, State, Worker
from chancy.clock import SystemClock
from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries
from chancy.results.reference import gather
from chancy.retry import Exponential
from tests.support import jobs
from tests.support.children import executor_processes
from tests.support.presence import present
from tests.support.waiting import eventually

QUEUES = [Queue(name="async", executor="async"), Queue(name="thread", executor="thread")]


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    jobs.noted.clear()
    jobs.started.clear()
    plugins = [Retries(Exponential(base_s=0.05)), Recovery(sweep_s=0.2)]
    async with Chancy(dsn, queues=QUEUES, plugins=plugins, pool_size=3) as made:
        # Its children take most of a second to start, and only one test needs them.
        await made.delete_queue("default")
        yield made


async def test_runs_what_is_pushed_before_and_after_its_start(chancy: Chancy) -> None:
    first = await chancy.push(jobs.note.job(value="before"))
    async with Worker(chancy) as worker:
        done = await first.wait(30)
        assert (done.state, done.result, done.attempt) == (State.SUCCEEDED, "before", 1)
        assert done.worker_id == worker.worker_id
        assert done.finished_at is not None
        await eventually(lambda: worker.listening)
        second = await chancy.push(jobs.note.job(value="after"))
        await second.wait(30)
    assert jobs.noted == ["before", "after"]
    assert await chancy.get_workers() == []


async def test_a_worker_that_could_not_start_can_be_started_again(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise BrokerUnavailable("not now")

    worker = Worker(chancy)
    with monkeypatch.context() as patch:
        patch.setattr(chancy.broker, "announce", refuse)
        with pytest.raises(BrokerUnavailable, match="not now"):
            await worker.start()
    async with worker:
        waiting = asyncio.create_task(worker.wait_for_shutdown())
        assert await (await chancy.push(jobs.stored_note.job(value="again"))).result(60) == "again"
        assert not waiting.done()
        worker.shut_down()
        await asyncio.wait_for(waiting, 20)


async def test_each_executor_runs_sync_and_async_functions(chancy: Chancy) -> None:
    here = [os.getpid(), threading.get_ident()]
    await chancy.declare(Queue(name="default", concurrency=1))
    async with Worker(chancy, children=1):
        for made in (jobs.pid_of_sync.job(), jobs.pid_of_async.job()):
            ran = {}
            for queue in ("default", "thread", "async"):
                reference = await chancy.push(made.with_queue(queue))
                ran[queue] = (await reference.wait(60)).result
            assert ran["default"][0] != here[0]
            assert ran["thread"][0] == here[0]
            assert ran["thread"][1] != here[1]
            assert ran["async"][0] == here[0]
            assert (ran["async"][1] == here[1]) is (made.func == jobs.pid_of_async.job().func)


async def test_a_failed_job_is_retried_until_its_attempts_are_used_up(
    chancy: Chancy, tmp_path: Path
) -> None:
    async with Worker(chancy):
        reference = await chancy.push(
            jobs.fail_times.job(path=str(tmp_path / "count"), times=2).with_max_attempts(5)
        )
        done = await reference.wait(60)
        assert (done.state, done.attempt, done.result) == (State.SUCCEEDED, 3, 2)
        assert [error["message"] for error in done.errors] == ["failure 1", "failure 2"]
        assert done.errors[0]["types"][0] == "builtins.ValueError"
        assert "fail_times" in done.errors[0]["trace"]
        lost = await (await chancy.push(jobs.fail.job().with_max_attempts(2))).wait(60)
        assert (lost.state, lost.attempt, len(lost.errors)) == (State.FAILED, 2, 2)


async def test_a_scheduled_job_runs_when_it_is_due(chancy: Chancy) -> None:
    async with Worker(chancy):
        reference = await chancy.push(jobs.note.job(value="late").with_delay(0.7))
        later = await chancy.push(jobs.note.job(value="later").with_delay(600))
        assert await later.status() is State.SCHEDULED
        done = await reference.wait(30)
        assert await later.status() is State.SCHEDULED
    assert done.run_at is not None
    assert done.claimed_at is not None
    assert timedelta(0) <= done.claimed_at - done.run_at < timedelta(seconds=20)


async def test_a_running_job_is_cancelled_although_the_notice_is_lost(dsn: str) -> None:
    jobs.started.clear()
    deaf = "postgresql://127.0.0.1:1/nothing"
    async with (
        Chancy(dsn, queues=QUEUES, listen_dsn=deaf, pool_size=3) as chancy,
        Worker(chancy, queues=["async"]) as worker,
    ):
        running = await chancy.push(jobs.wait_for_ever.job())
        await eventually(jobs.started.is_set)
        assert not worker.listening
        await chancy.cancel(running.id)
        assert (await running.wait(30)).state is State.CANCELLED


async def test_the_end_gives_running_jobs_back_without_an_attempt(chancy: Chancy) -> None:
    async with Worker(chancy, shutdown_timeout_s=0.2):
        reference = await chancy.push(jobs.wait_for_ever.job())
        await eventually(jobs.started.is_set)
    back = present(await reference.get())
    assert (back.state, back.attempt, back.worker_id) == (State.PENDING, 0, None)


async def test_an_end_that_is_cancelled_releases_running_jobs_at_once(chancy: Chancy) -> None:
    worker = Worker(chancy, shutdown_timeout_s=600)
    await worker.start()
    reference = await chancy.push(jobs.wait_for_ever.job())
    await eventually(jobs.started.is_set)
    ending = asyncio.create_task(worker.stop())
    await eventually(lambda: not worker.queues)
    ending.cancel()
    await asyncio.wait([ending])
    assert ending.cancelled()
    back = present(await reference.get())
    assert (back.state, back.attempt, back.worker_id) == (State.PENDING, 0, None)


class Hung(SystemClock):
    """A clock by which the wait for the last claim, of 15 s, has passed."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.waited_s

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        if timeout_s == 15.0:
            self.waited_s += timeout_s
            return False
        return await super().wait(event, timeout_s)


async def test_a_claim_that_hangs_gives_running_jobs_no_more_time(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Worker(chancy, shutdown_timeout_s=14) as worker:
        reference = await chancy.push(jobs.wait_for_ever.job())
        await eventually(jobs.started.is_set)
        monkeypatch.setattr(worker._queue_set._serving["async"], "_clock", Hung())
        async with asyncio.timeout(10):
            await worker.stop()
    back = present(await reference.get())
    assert (back.state, back.attempt) == (State.PENDING, 0)


async def test_the_end_releases_claims_that_have_not_started_at_once(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other workers can run them while this one still waits for its running job."""
    monkeypatch.setattr("chancy.worker.runner._AHEAD_S", 3_600.0)
    monkeypatch.setattr("chancy.worker.runner._PATIENCE_S", 3_600.0)
    await chancy.declare(Queue(name="async", executor="async", concurrency=1))
    async with Worker(chancy, shutdown_timeout_s=60) as worker:
        notes = [jobs.note.job(value=number) for number in range(50)]
        references = await chancy.push_many(notes + [jobs.wait_for_ever.job()] * 3)

        async def counted(pending: int, running: int) -> bool:
            counts = (await chancy.counts())["async"]
            return (counts.pending, counts.running) == (pending, running)

        await eventually(lambda: counted(0, 3))
        ending = asyncio.create_task(worker.stop())
        await eventually(lambda: counted(2, 1))
        assert not ending.done()
        await chancy.cancel(references[50].id)
        await ending
    found = [await one.get() for one in references[51:]]
    assert [one and one.attempt for one in found] == [0, 0]


async def test_a_worker_declared_dead_restarts_and_its_settlement_is_stale(
    chancy: Chancy, dsn: str
) -> None:
    async with Worker(
        chancy, heartbeat_s=0.1, heartbeat_timeout_s=5, shutdown_timeout_s=0.5
    ) as worker:
        first_id = worker.worker_id
        reference = await chancy.push(jobs.wait_for_ever.job())
        await eventually(jobs.started.is_set)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("delete from chancy.workers where id = %s", (first_id,))
            # Another worker has run it meanwhile: the row holds another lease.
            connection.execute(
                "update chancy.jobs set lease = gen_random_uuid() where id = %s", (reference.id,)
            )
        await eventually(lambda: worker.stale == 1)
        await eventually(lambda: worker.worker_id != first_id)
        await (await chancy.push(jobs.note.job(value="anew"))).wait(30)
        found = present(await reference.get())
        assert found.state is State.RUNNING


async def test_a_worker_that_ends_does_not_take_its_own_end_for_a_death(
    chancy: Chancy, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(25):
        async with Worker(chancy, heartbeat_s=0.0001, heartbeat_timeout_s=5):
            await asyncio.sleep(0)
    assert "worker_declared_dead" not in caplog.text
    assert await chancy.get_workers() == []


async def test_a_worker_names_settings_of_a_queue_that_the_stored_ones_override(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    rules = (GlobalConcurrency(5), RateLimit(60, per=timedelta(minutes=1)))
    mail = Queue("mail", executor="async", rules=rules, tags=frozenset({"a"}))
    video = Queue("video", executor="async", concurrency=3)
    async with Chancy(dsn) as chancy:
        await chancy.declare(replace(mail, paused=True))
        await chancy.declare(replace(video, concurrency=7, poll_interval_s=5))
    async with Chancy(dsn, queues=[mail, video]) as chancy, Worker(chancy, queues=["video"]):
        pass
    kept = [one.message for one in caplog.records if one.message.startswith("queue_settings_kept")]
    assert [one.partition(": ")[0] for one in kept] == [
        "queue_settings_kept queue=video settings=concurrency,poll_interval_s"
    ]


async def test_the_first_declaration_of_the_default_queue_replaces_the_row_of_the_migration(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    mine = Queue("default", executor="async", concurrency=3)
    async with Chancy(dsn, queues=[mine]) as chancy, Worker(chancy):
        assert await chancy.get_queues() == [mine]
    assert "queue_settings_kept" not in caplog.text
    async with Chancy(dsn, queues=[replace(mine, concurrency=4)]) as chancy, Worker(chancy):
        assert await chancy.get_queues() == [mine]
    assert "queue_settings_kept queue=default settings=concurrency:" in caplog.text


async def test_waiting_for_a_worker_that_was_not_started_is_refused(chancy: Chancy) -> None:
    worker = Worker(chancy)
    with pytest.raises(ConfigurationError, match="has not been started"):
        await asyncio.wait_for(worker.wait_for_shutdown(), 10)
    async with worker:
        worker.shut_down()
        await worker.wait_for_shutdown()
    handler = signal.getsignal(signal.SIGTERM)
    await worker.wait_for_shutdown()
    assert signal.getsignal(signal.SIGTERM) is handler


async def test_process_queues_of_a_worker_share_its_children(dsn: str) -> None:
    names = [f"process-{number}" for number in range(4)]
    queues = [Queue(name=name, executor="process", concurrency=2) for name in names]
    async with Chancy(dsn, queues=queues) as app, Worker(app, queues=names, children=1):
        pids = executor_processes()
        assert len(pids) == 1
        made = [jobs.pid_of_sync.job().with_queue(name) for name in names * 5]
        results = await gather(await app.push_many(made), timeout_s=30.0)
    assert {pid for pid, _ in results} == pids

"""A worker serves the queues that are there, as they are now, the most urgent jobs first."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from chancy import Chancy, Job, Queue, State, Worker
from chancy.errors import ConfigurationError
from chancy.plugins.recovery import Recovery
from chancy.plugins.retry import Retries
from chancy.retry import Exponential
from chancy.worker.surveyor import Surveyor
from tests.support import jobs
from tests.support.sql import ask
from tests.support.waiting import eventually, gives

QUEUES = [Queue(name="async", executor="async"), Queue(name="thread", executor="thread")]
#: The first of them, which is looked at every second although notifications arrive.
FREQUENT = replace(QUEUES[0], poll_interval_s=0.1)


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    jobs.noted.clear()
    jobs.started.clear()
    jobs.may_end.clear()
    plugins = [Retries(Exponential(base_s=0.05)), Recovery(sweep_s=0.2)]
    async with Chancy(dsn, queues=QUEUES, plugins=plugins, pool_size=3) as made:
        # Its children take most of a second to start, and only one test needs them.
        await made.delete_queue("default")
        yield made


async def test_equal_priorities_run_in_push_order(chancy: Chancy) -> None:
    await chancy.declare(Queue(name="async", executor="async", concurrency=1))
    await chancy.push_many(jobs.note.job(value=n) for n in range(300))
    async with Worker(chancy):
        await eventually(lambda: len(jobs.noted) == 300)
    assert jobs.noted == list(range(300))


async def test_a_worker_may_run_fewer_at_a_time_than_the_queue_says(chancy: Chancy) -> None:
    await chancy.push_many([Job.from_func(jobs.wait_for_ever)] * 5)

    async def counts() -> tuple[int, int]:
        found = (await chancy.counts())["async"]
        return found.running, found.pending

    async with Worker(chancy, concurrency=2, shutdown_timeout_s=0):
        await eventually(lambda: gives(counts(), (2, 3)))
        for _ in range(20):
            assert await counts() == (2, 3)


@pytest.mark.row("F44")
async def test_a_worker_may_hold_fewer_claims_than_its_pace_allows(chancy: Chancy) -> None:
    """Behind jobs that take no time, which make others hold hundreds."""
    quick = [jobs.note.job(value=n) for n in range(500)]
    await chancy.push_many([*quick, Job.from_func(jobs.wait_for_ever), *quick])
    async with Worker(chancy, concurrency=1, prefetch_limit=2, shutdown_timeout_s=0) as worker:
        await eventually(lambda: jobs.started.is_set() and worker.settled == 500)
        for _ in range(5):
            assert (await chancy.counts())["async"].running <= 3


async def test_an_urgent_job_overtakes_a_backlog(chancy: Chancy, dsn: str) -> None:
    await chancy.declare(Queue(name="async", executor="async", concurrency=1))
    slow = Job.from_func(jobs.nap, seconds=0.05)
    await chancy.push_many([slow] * 20_000)
    async with Worker(chancy, shutdown_timeout_s=0):
        await eventually(lambda: len(jobs.noted) > 20)
        began = time.monotonic()
        urgent = await chancy.push(jobs.note.job(value="urgent").with_priority(100))
        await urgent.wait(60)
        took = time.monotonic() - began
        await chancy.pause_queue("async")
    assert took < 20.0, f"the urgent job waited {took:.2f} s behind a backlog of 1,000 s"


async def test_a_pause_until_a_time_that_is_over_is_refused(chancy: Chancy) -> None:
    await chancy.declare(QUEUES[0])
    past = datetime.now(UTC) - timedelta(seconds=1)
    with pytest.raises(ConfigurationError, match="is over, so the queue would not be paused"):
        await chancy.pause_queue("async", resume_at=past)
    [stored] = [queue for queue in await chancy.get_queues() if queue.name == "async"]
    assert (stored.paused, stored.resume_at) == (False, None)


async def test_a_paused_queue_waits_until_it_is_resumed(chancy: Chancy) -> None:
    await chancy.declare(FREQUENT, upsert=True)
    async with Worker(chancy):
        assert await chancy.pause_queue("async")
        held = await chancy.push(jobs.note.job(value="held"))
        other = await chancy.push(jobs.pid_of_sync.job().with_queue("thread"))
        await other.wait(30)
        assert await held.status() is State.PENDING
        await chancy.declare(FREQUENT, upsert=True)
        assert [queue.paused for queue in await chancy.get_queues() if queue.name == "async"] == [
            True
        ]
        assert await chancy.resume_queue("async")
        await held.wait(30)
    assert not await chancy.pause_queue("nowhere")


@pytest.mark.parametrize("executor", ["thread", "process"])
async def test_a_pause_releases_what_was_handed_to_an_executor_and_has_not_started(
    chancy: Chancy, executor: str
) -> None:
    """Slow jobs behind quick ones, of which an executor gets many at a time."""
    await chancy.declare(Queue(name="thread", executor=executor, concurrency=1), upsert=True)
    naps = [0.0] * 1_000 + [2.0] * 60
    await chancy.push_many(jobs.nap.job(seconds=s).with_queue("thread") for s in naps)

    async def none_runs() -> bool:
        return (await chancy.counts())["thread"].running == 0

    async with Worker(chancy) as worker:
        await eventually(lambda: worker.settled > 1_000)
        await chancy.pause_queue("thread")
        await eventually(none_runs, timeout=20.0)
    assert (await chancy.counts())["thread"].pending > 40


async def pause_for(chancy: Chancy, seconds: float) -> datetime:
    """Pause the queue ``async``; returns when it resumes."""
    for _ in range(20):
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        try:
            await chancy.pause_queue("async", resume_at=at)
        except ConfigurationError as error:
            # So long has a busy machine taken to get here.
            if "is over" not in str(error):
                raise
        else:
            return at
    raise AssertionError("it was refused each time")


async def test_a_queue_that_resumes_is_claimed_from_at_once(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Surveyor, "_pause_s", lambda *_: 3_600.0)
    async with Worker(chancy) as worker:
        await eventually(lambda: worker.listening)
        soon = await pause_for(chancy, 1.0)
        done = await (await chancy.push(jobs.note.job(value=1))).wait(30)
    assert done.claimed_at is not None
    assert done.claimed_at >= soon


async def test_running_workers_follow_changes_of_queues(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By notifications."""
    monkeypatch.setattr("chancy.worker.worker._QUEUES_EVERY_S", 3_600.0)
    monkeypatch.setattr(Surveyor, "_pause_s", lambda *_: 3_600.0)
    async with Worker(chancy) as worker:
        await eventually(lambda: worker.listening)
        await chancy.declare(Queue(name="new", executor="async"))
        await (await chancy.push(jobs.note.job(value=1).with_queue("new"))).wait(30)
        await chancy.declare(Queue(name="new", executor="thread"), upsert=True)

        async def in_a_thread() -> bool:
            reference = await chancy.push(jobs.pid_of_sync.job().with_queue("new"))
            found = (await reference.wait(30)).result
            return bool(found[1] != threading.get_ident())

        await eventually(in_a_thread)
        await chancy.delete_queue("new")

        async def unserved() -> bool:
            return all("new" not in one.queues for one in await chancy.get_workers())

        await eventually(unserved)
        orphan = await chancy.push(jobs.note.job(value=2).with_queue("new"))
        await chancy.declare(Queue(name="new", executor="async"))
        await orphan.wait(30)


async def test_tags_decide_which_worker_serves_a_queue(chancy: Chancy) -> None:
    await chancy.declare(Queue(name="gpu", executor="async", tags=frozenset({"has=gpu"})))
    await chancy.declare(
        Queue(name="here", executor="async", tags=frozenset({r"python=3\..*", "os=linux", "*"}))
    )
    async with Worker(chancy):
        waits = await chancy.push(jobs.note.job(value=1).with_queue("gpu"))
        await (await chancy.push(jobs.note.job(value=2).with_queue("here"))).wait(30)
        assert await waits.status() is State.PENDING
        async with Worker(chancy, tags={"has=gpu"}):
            await waits.wait(30)
        (one,) = await chancy.get_workers()
        names = {tag.partition("=")[0] for tag in one.tags}
        assert names == {"*", "hostname", "worker_id", "python", "arch", "os"}


async def test_only_the_named_queues_are_served(chancy: Chancy) -> None:
    async with Worker(chancy, queues=["async"]):
        left = await chancy.push(jobs.pid_of_sync.job().with_queue("thread"))
        await (await chancy.push(jobs.note.job(value=1))).wait(30)
        assert await left.status() is State.PENDING


async def test_an_invalid_queue_row_is_repaired_and_reported(
    chancy: Chancy, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    ask(
        dsn,
        "insert into chancy.queues (name, executor, concurrency, tags, poll_interval_s) "
        "values ('broken', 'os.system', -1, '{(}', 'NaN')",
    )
    async with Worker(chancy, queues=["broken"]):
        reference = await chancy.push(jobs.pid_of_sync.job().with_queue("broken"))
        assert (await reference.wait(60)).state is State.SUCCEEDED
    for complaint in ("os.system", "concurrency=-1", "'('", "poll_interval_s=nan"):
        assert complaint in caplog.text


async def test_a_burst_ends_when_the_queues_are_empty(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for the next survey."""
    monkeypatch.setattr(Surveyor, "_pause_s", lambda *_: 3_600.0)
    await chancy.push_many(jobs.note.job(value=n) for n in range(500))
    async with Worker(chancy, burst=True) as worker:
        await asyncio.wait_for(worker.wait_for_shutdown(), 60)
    assert len(jobs.noted) == 500
    assert worker.settled == 500


async def test_every_free_slot_is_used_beside_long_jobs(chancy: Chancy) -> None:
    await chancy.declare(Queue(name="async", executor="async", concurrency=8))
    await chancy.push_many([jobs.wait_for_ever.job()] * 7)
    async with Worker(chancy, shutdown_timeout_s=0):

        async def seven_run() -> bool:
            counts = (await chancy.counts()).get("async")
            return counts is not None and counts.running == 7

        await eventually(seven_run)
        for value in range(3):
            await (await chancy.push(jobs.note.job(value=value))).wait(30)


async def test_a_pause_ends_nothing_that_runs(chancy: Chancy) -> None:
    await chancy.declare(FREQUENT, upsert=True)
    async with Worker(chancy, shutdown_timeout_s=0.2):
        running = await chancy.push(jobs.hold.job())
        await eventually(lambda: jobs.noted == ["held"])
        await pause_for(chancy, 0.5)
        later = await chancy.push(jobs.note.job(value="later"))
        await later.wait(30)
        await chancy.pause_queue("async")
        await chancy.resume_queue("async")
        jobs.may_end.set()
        done = await running.wait(30)
    assert (done.state, done.attempt) == (State.SUCCEEDED, 1)
    assert jobs.noted == ["held", "later"]


async def test_running_jobs_survive_changes_of_their_queue(chancy: Chancy) -> None:
    async with Worker(chancy, shutdown_timeout_s=0.2) as worker:
        running = await chancy.push(jobs.hold.job())
        await eventually(lambda: jobs.noted == ["held"])
        for concurrency in (3, 5):
            await chancy.declare(
                Queue(name="async", executor="async", concurrency=concurrency), upsert=True
            )
            await (await chancy.push(jobs.note.job(value=concurrency))).wait(30)
        await chancy.delete_queue("async")
        await eventually(lambda: "async" not in worker.queues)
        jobs.may_end.set()
        done = await running.wait(30)
        assert (done.state, done.attempt) == (State.SUCCEEDED, 1)


async def test_jobs_under_former_queue_settings_can_be_cancelled(chancy: Chancy) -> None:
    async with Worker(chancy) as worker:
        running = await chancy.push(jobs.nap.job(seconds=60.0))
        await eventually(lambda: jobs.noted == [60.0])
        await chancy.delete_queue("async")
        await eventually(lambda: "async" not in worker.queues)
        await chancy.cancel(running.id)
        assert (await running.wait(30)).state is State.CANCELLED


async def test_of_many_changes_the_oldest_end_soon(chancy: Chancy) -> None:
    # Each has one slot, taken for longer than the test: the next job runs when it is served anew.
    changes = [Queue(name="async", executor="async", concurrency=1)]
    changes += [replace(changes[0], poll_interval_s=1.0 + n / 10) for n in range(1, 4)]
    changes.append(replace(changes[0], concurrency=2))
    await chancy.declare(changes[0])
    async with Worker(chancy, shutdown_timeout_s=0.2):
        for number, queue in enumerate(changes):
            await chancy.declare(queue, upsert=True)
            await chancy.push(jobs.nap.job(seconds=50.0 + number))
            await eventually(partial(_noted, number + 1))
        # The first of five is older than the three that may go on beside the last.
        await eventually(lambda: jobs.noted.count(50.0) == 2)
    assert [jobs.noted.count(50.0 + number) for number in range(1, 5)] == [1, 1, 1, 1]


def _noted(count: int) -> bool:
    return len(jobs.noted) >= count

"""What becomes of jobs that answer something else than a result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from chancy import Chancy, Job, Queue, QueuedJob, State, Worker
from chancy.plugins.retry import Retries
from chancy.retry import Constant
from chancy.worker import promoter
from tests.integration import control_jobs as answering

#: How the answers of each executor reach the worker is in its contract: what follows is the same.
ASYNC = Queue(name="async", executor="async")


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    # A policy that nothing here can wait for.
    async with Chancy(dsn, queues=[ASYNC], plugins=[Retries(Constant(3600))], pool_size=3) as made:
        await made.delete_queue("default")
        yield made


async def end_of(chancy: Chancy, job: Job[Any]) -> QueuedJob:
    async with Worker(chancy, queues=["async"]) as worker:
        done = await (await chancy.push(job.with_queue("async"))).wait(60)
        assert worker.stale == 0
    return done


async def test_a_job_that_puts_itself_off_uses_up_no_attempt(
    chancy: Chancy, tmp_path: Path
) -> None:
    done = await end_of(chancy, answering.poll.job(path=str(tmp_path / "runs"), times=3))
    assert (done.state, done.attempt, done.result) == (State.SUCCEEDED, 1, 4)
    assert done.meta["snoozes"] == 3
    assert done.errors == ()


async def test_a_job_that_cancels_itself_is_cancelled_and_gives_the_reason(
    chancy: Chancy, tmp_path: Path
) -> None:
    done = await end_of(chancy, answering.give_up_async.job(path=str(tmp_path / "runs")))
    assert (done.state, done.attempt) == (State.CANCELLED, 1)
    assert [error["message"] for error in done.errors] == ["nobody wants it any more"]
    assert (tmp_path / "runs").read_text() == "x"


async def test_a_job_is_retried_at_the_time_it_requested(chancy: Chancy, tmp_path: Path) -> None:
    done = await end_of(chancy, answering.try_again_async.job(path=str(tmp_path / "runs")))
    assert (done.state, done.attempt) == (State.FAILED, 3)
    assert [error["message"] for error in done.errors] == ["busy 1", "busy 2", "busy 3"]
    assert done.finished_at is not None
    assert timedelta(seconds=0.1) <= done.finished_at - done.pushed_at < timedelta(seconds=20)


async def test_a_short_delay_does_not_wait_for_the_next_promotion(
    chancy: Chancy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promoter, "_LONGEST_S", 3600)
    done = await end_of(chancy, answering.try_again_async.job(path=str(tmp_path / "runs")))
    assert (done.state, done.attempt) == (State.FAILED, 3)

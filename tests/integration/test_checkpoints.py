"""Checkpoints of jobs are stored, and not run again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from chancy import Chancy, Queue, State, Worker
from chancy.plugins.retry import Retries
from chancy.retry import Constant
from tests.integration import completion_jobs as completing
from tests.support.sql import ask
from tests.support.waiting import eventually

QUEUES = [
    Queue(name=executor, executor=executor, concurrency=1) for executor in ("process", "async")
]
CHECKPOINTS = ["checkpoint 1", "checkpoint 2", "checkpoint 3"]


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn, queues=QUEUES, plugins=[Retries(Constant(0.05))], pool_size=3) as made:
        await made.delete_queue("default")
        yield made


async def test_a_child_that_dies_between_checkpoints_runs_none_of_them_twice(
    chancy: Chancy, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    async with Worker(chancy, queues=["process"]):
        job = completing.three_checkpoints.job(path=str(marks), die_after=1).with_queue("process")
        done = await (await chancy.push(job)).wait(30)
    assert (done.state, done.crashes, done.result) == (State.SUCCEEDED, 1, CHECKPOINTS)
    assert marks.read_text().splitlines() == CHECKPOINTS
    assert [
        done.meta["checkpoints"][checkpoint]["value"] for checkpoint in CHECKPOINTS
    ] == CHECKPOINTS


#: How checkpoints of each executor reach the worker is in its contract.
async def test_a_retry_continues_after_the_last_checkpoint(chancy: Chancy, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    async with Worker(chancy, queues=["async"]):
        job = completing.checkpoints_and_raise.job(path=str(marks)).with_queue("async")
        done = await (await chancy.push(job)).wait(60)
    assert (done.state, done.attempt, done.result) == (State.SUCCEEDED, 2, "second")
    assert marks.read_text().splitlines() == ["first", "second"]
    assert {
        name: checkpoint["attempt"] for name, checkpoint in done.meta["checkpoints"].items()
    } == {
        "first": 1,
        "second": 2,
    }


async def test_a_zombie_stops_at_its_next_checkpoint(
    chancy: Chancy, dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marks, go = tmp_path / "marks", tmp_path / "go"
    async with Worker(chancy, queues=["async"]) as worker:
        job = completing.checkpoints_of_a_zombie.job(path=str(marks), go=str(go))
        reference = await chancy.push(job.with_queue("async"))

        async def stored() -> bool:
            found = await reference.get()
            return found is not None and "checkpoints" in found.meta

        await eventually(stored)
        ask(dsn, "update chancy.jobs set lease = gen_random_uuid()")
        go.touch()
        await eventually(lambda: worker.stale == 1)
        found = await reference.get()
    assert found is not None
    assert (found.state, list(found.meta["checkpoints"])) == (State.RUNNING, ["first"])
    assert caplog.text.count("lease_lost") == 1
    # The second one has been run, but is not stored; whoever has the job runs it, too.
    assert marks.read_text().splitlines() == ["first", "second"]


async def test_a_checkpoint_waits_until_the_server_is_there_again(
    chancy: Chancy, dsn: str, tmp_path: Path
) -> None:
    marks, go = tmp_path / "marks", tmp_path / "go"
    async with Worker(chancy, queues=["async"]):
        job = completing.checkpoints_of_a_zombie.job(path=str(marks), go=str(go)).with_queue(
            "async"
        )
        reference = await chancy.push(job)
        await eventually(marks.exists)
        with psycopg.connect(dsn, autocommit=True) as connection:
            # What cuts every session of the worker.
            cut = (
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = "
                "current_database() and pid <> pg_backend_pid() and application_name like 'chancy%'"
            )
            for _ in range(5):
                connection.execute(cut)
                go.touch()
                await asyncio.sleep(0.05)  # longer than a session needs to come back
        done = await reference.wait(30)
    assert (done.state, done.attempt, done.result) == (State.SUCCEEDED, 1, "second")
    assert marks.read_text().splitlines() == ["first", "second"]

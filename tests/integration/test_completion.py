"""Jobs that complete themselves in the transaction of what they write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from chancy import Chancy, Job, Queue, QueuedJob, State, Worker
from chancy.plugins.retry import Retries
from chancy.retry import Constant
from tests.integration import completion_jobs as completing
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

QUEUES = [
    Queue(name=f"{executor}{end}", executor=executor, concurrency=1, keep_finished=not end)
    for executor in ("process", "thread", "async")
    for end in ("", "-unkept")
]


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    ask(dsn, completing.EFFECTS)
    async with Chancy(dsn, queues=QUEUES, plugins=[Retries(Constant(0.05))], pool_size=3) as made:
        await made.delete_queue("default")
        yield made


def effects(dsn: str) -> Sequence[Any]:
    return ask(dsn, "select what from effects")


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Warnings and errors, without those of a busy machine."""
    found = (one for one in caplog.records if one.levelname in ("WARNING", "ERROR"))
    return [text for one in found if "loop_blocked" not in (text := one.getMessage())]


async def end_of(chancy: Chancy, queue: str, job: Job[Any], stale: int = 0) -> QueuedJob | None:
    """How a job ends, for the tables and for the worker."""
    async with Worker(chancy, queues=[queue]) as worker:
        reference = await chancy.push(job.with_queue(queue))

        async def ended() -> bool:
            found = await reference.get()
            return found is None or found.state.final

        await eventually(ended)
        # The ordinary settlement comes after it.
        await eventually(lambda: worker.settled + worker.stale >= 1)
    assert worker.stale == stale
    return await reference.get()


@pytest.mark.parametrize(
    ("queue", "function"),
    [
        ("process", completing.complete_job),
        ("thread", completing.sync_complete_job),
        ("async", completing.complete_job),
    ],
)
async def test_the_effect_and_the_end_are_one(
    chancy: Chancy, dsn: str, queue: str, function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    done = present(await end_of(chancy, queue, function.job(dsn=dsn)))
    assert (done.state, done.attempt, done.result) == (State.SUCCEEDED, 1, {"done": 1})
    assert done.errors == ()
    assert effects(dsn) == [("attempt 1",)]
    assert complaints(caplog) == []


async def test_a_rolled_back_completion_leaves_the_job_to_its_outcome(
    chancy: Chancy, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = completing.complete_job.job(dsn=dsn, then="roll back")
    done = present(await end_of(chancy, "async", job))
    assert (done.state, done.attempt, done.result) == (State.SUCCEEDED, 2, {"done": 1})
    assert [error["message"] for error in done.errors] == ["inside"]
    assert effects(dsn) == [("attempt 2",)]
    assert "job_completed_before" not in caplog.text


@pytest.mark.parametrize("kept", ["", "-unkept"])
async def test_an_error_after_the_commit_leaves_the_job_succeeded(
    chancy: Chancy, dsn: str, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = completing.complete_job.job(dsn=dsn, then="raise")
    done = await end_of(chancy, f"async{kept}", job)
    if kept:
        assert done is None
    else:
        assert done is not None
        assert (done.state, done.attempt, done.errors) == (State.SUCCEEDED, 1, ())
    assert effects(dsn) == [("attempt 1",)]
    assert caplog.text.count("job_completed_before") == 1
    assert "after the commit" in caplog.text
    assert "settlements_stale" not in caplog.text


async def test_a_child_that_dies_after_the_commit_changes_nothing(chancy: Chancy, dsn: str) -> None:
    job = completing.complete_job.job(dsn=dsn, then="die")
    done = present(await end_of(chancy, "process", job))
    assert done.state is State.SUCCEEDED
    assert effects(dsn) == [("attempt 1",)]


async def test_where_nothing_is_kept_it_is_not_stale(
    chancy: Chancy, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await end_of(chancy, "async-unkept", completing.complete_job.job(dsn=dsn)) is None
    assert effects(dsn) == [("attempt 1",)]
    assert complaints(caplog) == []


async def test_a_session_of_sqlalchemy_can_be_used(chancy: Chancy, dsn: str) -> None:
    done = present(await end_of(chancy, "async", completing.complete_in_session.job(dsn=dsn)))
    assert (done.state, done.result) == (State.SUCCEEDED, {"done": 1})
    assert effects(dsn) == [("session",)]


async def test_a_service_without_its_lease_writes_nothing(
    chancy: Chancy, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Worker(chancy, queues=["async"]) as worker:
        reference = await chancy.push(completing.lose.job(dsn=dsn).with_queue("async"))
        await eventually(lambda: worker.stale)
        found = await reference.get()
    assert found is not None
    # Whoever has the lease now will end it.
    assert found.state is State.RUNNING
    assert effects(dsn) == []
    assert "job_completed_before" not in caplog.text

"""Jobs that are added to batches, and jobs that cannot be in one."""

from __future__ import annotations

from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, Job, JobFailed, NoCurrentJob, PushError, Unique, job
from chancy.plugins.batch import Batch, Batches, BatchState
from tests.plugins.batch import jobs as batch_jobs
from tests.plugins.batch.batching import callbacks, called, counted, working
from tests.plugins.batch.jobs import act, adding, ran
from tests.support.sql import ask
from tests.support.waiting import eventually


async def test_an_open_batch_gets_more_jobs_until_it_is_closed(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(may_grow=True), [act.job(1)])
        await eventually(lambda: ran == ["1"])
        assert await reference.add([act.job(2), act.job(3)]) == 2
        assert await reference.add([]) == 0
        async with chancy.transaction() as tx:
            await reference.add([act.job(4)], within=tx)
        await eventually(lambda: len(ran) == 4)
        await eventually(lambda: not ask(batches_dsn, "select id from chancy.jobs"))
        assert await called(batches_dsn) == []
        assert await reference.close()
        assert await reference.wait(10) is BatchState.SUCCEEDED
        assert not await reference.close()
        with pytest.raises(PushError, match="has ended"):
            await reference.add([act.job(5)])
        assert await called(batches_dsn) == ["on finish", "on success"]
        assert await reference.progress() == counted(0, 4, 0, 0)


async def test_only_an_open_batch_gets_more_from_outside(batches_dsn: str) -> None:
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        reference = await batches.push(chancy, Batch(name="b"), [act.job(1)])
        with pytest.raises(PushError, match="is not open"):
            await reference.add([act.job(2)])
        with pytest.raises(PushError, match="no batch has this id"):
            await batches.reference(chancy, UUID(int=5)).add([act.job(2)])
        assert await reference.close()  # it runs
        assert not await batches.reference(chancy, UUID(int=5)).close()
    assert ask(batches_dsn, "select count(*) from chancy.jobs") == [(1,)]


async def test_a_running_job_adds_jobs_to_its_batch(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        batch_jobs.apps.append((chancy, batches))
        reference = await batches.push(chancy, callbacks(), [adding.job(0, 20)])
        assert await reference.wait(20) is BatchState.SUCCEEDED
        assert await reference.progress() == counted(0, 21, 0, 0)
        assert await called(batches_dsn) == ["on finish", "on success"]
    assert ask(batches_dsn, "select * from chancy.batches_added") == []


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ([act.job(1).with_unique(Unique())], "is unique"),
        ([act.job(1).with_id(UUID(int=1))], "an id of its own"),
        ([act.job(1).with_meta(batch={})], "in a batch already"),
        (["no job"], "is not a job"),
        (act.job(1), "is one job: pass a list of them"),
        ([act.job(1), Job(func="tests.plugins.batch.jobs.act", arguments={"x": 1})], "x"),
    ],
)
async def test_jobs_that_cannot_be_in_a_batch(
    batches_dsn: str, jobs: list[Job[None]], why: str
) -> None:
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        with pytest.raises(PushError, match=why):
            await batches.push(chancy, Batch(name="b"), jobs)
    for table in ("jobs", "batches", "batches_shards", "batches_jobs"):
        assert ask(batches_dsn, f"select * from chancy.{table}") == []


async def test_a_batch_has_a_bound(batches_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.plugins.batch.pushing.MAX_JOBS", 5)
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        with pytest.raises(PushError, match="would have over"):
            await batches.push(chancy, Batch(name="b"), [act.job(n) for n in range(6)])
        open_ = await batches.push(chancy, Batch(name="b", open=True), [act.job(n) for n in (1, 2)])
        await open_.add([act.job(3), act.job(4)])
        with pytest.raises(PushError, match="would have over"):
            await open_.add([act.job(5), act.job(6)])
        assert await open_.add([act.job(5)]) == 1


@job(queue="async", max_attempts=1)
async def adding_there(dsn: str, more: int) -> None:
    """Adds jobs without an event loop."""
    _, batches = batch_jobs.apps[0]
    with Chancy(dsn, plugins=[batches]) as chancy, psycopg.connect(dsn) as connection:
        assert (
            batches.sync_add(chancy, [act.job(n) for n in range(more)], within=connection) == more
        )


async def test_blocking_code_adds_jobs_to_its_batch(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        batch_jobs.apps.append((chancy, batches))
        reference = await batches.push(chancy, callbacks(), [adding_there.job(batches_dsn, 3)])
        assert await reference.wait(20) is BatchState.SUCCEEDED
        assert await reference.progress() == counted(0, 4, 0, 0)


async def test_jobs_are_added_by_jobs_of_batches_alone(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        batch_jobs.apps.append((chancy, batches))
        alone = await chancy.push(adding.job(0, 1))
        with pytest.raises(JobFailed, match="is in no batch"):
            await alone.result(10)
        with pytest.raises(NoCurrentJob):
            await batches.add(chancy, [act.job(1)])

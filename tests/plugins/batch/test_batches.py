"""Batches: their jobs, and the callbacks that are pushed when these have ended."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from chancy import Chancy, ConfigurationError, Job, PushError, Queue, State, Unique, WaitTimeout
from chancy.broker.values import JobFilter
from chancy.plugins.batch import Batch, Batches, BatchFilter, BatchState
from tests.plugins.batch import jobs as batch_jobs
from tests.plugins.batch.batching import callbacks, called, counted, working
from tests.plugins.batch.jobs import act, held, ran, retried, said
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually


async def test_all_succeed(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(), [act.job(n) for n in range(30)])
        assert await reference.wait(20) is BatchState.SUCCEEDED
        assert await called(batches_dsn) == ["on finish", "on success"]
        assert await reference.progress() == counted(0, 30, 0, 0)
        assert [one.on.label for one in await reference.callbacks() if one.pushed_at] == [
            "success", "finish",
        ]  # fmt: skip
        # Its id is known: a second push of it does nothing.
        again = Batch(name="b", id=reference.id)
        assert await batches.push(chancy, again, [act.job(99)]) == reference
        assert await reference.progress() == counted(0, 30, 0, 0)
    assert ask(batches_dsn, "select * from chancy.batches_jobs") == []


async def test_some_fail(batches_dsn: str) -> None:
    batches = Batches()
    batch_jobs.failing.update({3, 7})
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(), [act.job(n) for n in range(10)])
        assert await reference.wait(20) is BatchState.FAILED
        assert await called(batches_dsn) == ["on failure", "on finish"]
        assert await reference.progress() == counted(0, 8, 2, 0)
        bad = await reference.bad()
        assert [state for _, state in bad] == [State.FAILED] * 2
        assert await reference.bad(after=bad[0][0], limit=5) == bad[1:]


async def test_the_first_failure_is_reported_at_once_and_once(batches_dsn: str) -> None:
    batches = Batches()
    batch_jobs.failing.update({1, 2})
    async with working(batches_dsn, batches) as chancy:
        jobs = [act.job(1), held.job(0), act.job(2)]
        reference = await batches.push(chancy, callbacks(), jobs)
        await eventually(lambda: "on failure" in ran)
        found = present(await reference.get())
        assert found.state is BatchState.RUNNING
        assert found.progress.fraction < 1
        with pytest.raises(WaitTimeout, match="is running after"):
            await reference.wait(0.05)
        batch_jobs.gate.set()
        assert await reference.wait(20) is BatchState.FAILED
        assert await called(batches_dsn) == ["on failure", "on finish"]


async def test_a_job_that_is_retried_counts_once(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(), [retried.job(n) for n in range(5)])
        assert await reference.wait(20) is BatchState.SUCCEEDED
        assert await reference.progress() == counted(0, 5, 0, 0)
        assert await called(batches_dsn) == ["on finish", "on success"]
    assert len(ran) == 17


async def test_an_empty_batch_has_ended(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(), [])
        assert await reference.wait(10) is BatchState.SUCCEEDED
        assert await called(batches_dsn) == ["on finish", "on success"]
        found = await reference.progress()
    assert found is not None
    assert (found.total, found.fraction) == (0, 1.0)


async def test_callbacks_expire_after_their_own_push(batches_dsn: str) -> None:
    at = datetime(2099, 1, 1, tzinfo=UTC)
    soon = said.job("on").with_expires_at(timedelta(hours=1))
    batches = Batches()
    batch = Batch(name="b", on_finish=soon, on_success=said.job("on").with_expires_at(at))
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        with pytest.raises(PushError, match=r"on_finish: .*it could never start"):
            await batches.push(chancy, Batch(name="b", on_finish=soon.with_delay(7200)), [])
        await batches.push(chancy, batch, [])
        found = {job.expires_at: job.pushed_at for job in await chancy.find_jobs(JobFilter())}
    del found[at]
    ((expires_at, pushed_at),) = found.items()
    assert expires_at is not None
    assert timedelta(minutes=50) < expires_at - pushed_at < timedelta(minutes=70)


async def test_a_batch_is_cancelled(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        jobs = [held.job(1), *[act.job(n).with_delay(3600) for n in range(700)]]
        reference = await batches.push(chancy, callbacks(), jobs)
        await eventually(lambda: ran == ["1"])
        assert await reference.cancel()
        assert await reference.wait(20) is BatchState.CANCELLED
        assert await reference.progress() == counted(0, 0, 0, 701)
        assert await called(batches_dsn) == ["on finish"]
        assert not await reference.cancel()


async def test_a_batch_that_is_cancelled_before_it_has_jobs_is_cancelled(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(may_grow=True), [])
        assert await reference.cancel()
        assert await reference.wait(20) is BatchState.CANCELLED
        assert await called(batches_dsn) == ["on finish"]


async def test_a_job_that_was_asked_to_stop_and_should_go_back_is_cancelled(
    batches_dsn: str,
) -> None:
    """A queue without history keeps no trace of such a job."""
    batches = Batches(sweep_s=3600)
    brief = Queue(name="async", executor="async", keep_finished=False)
    batch_jobs.failing.add(1)
    async with working(batches_dsn, batches, queue=brief) as chancy:
        jobs = [held.job(1).with_max_attempts(2)]
        reference = await batches.push(chancy, callbacks(), jobs)
        await eventually(lambda: ran == ["1"])
        ask(batches_dsn, "update chancy.jobs set stop_asked_at = now()")
        batch_jobs.gate.set()
        assert await reference.wait(10) is BatchState.CANCELLED
        assert await called(batches_dsn) == ["on finish"]


async def test_a_batch_is_part_of_the_callers_transaction(batches_dsn: str) -> None:
    batches = Batches()
    async with (
        Chancy(batches_dsn, plugins=[batches]) as chancy,
        await psycopg.AsyncConnection.connect(batches_dsn) as connection,
    ):
        reference = await batches.push(
            chancy, Batch(name="b"), [act.job(n) for n in range(2_500)], within=connection
        )
        assert await reference.get() is None
        await connection.rollback()
        assert await reference.get() is None
        assert ask(batches_dsn, "select id from chancy.jobs") == []
        reference = await batches.push(
            chancy, Batch(name="b"), [act.job(n) for n in range(2_500)], within=connection
        )
        await connection.commit()
        assert await reference.progress() == counted(2_500, 0, 0, 0)
        found = await batches.find(chancy, BatchFilter(name="b", states=[BatchState.RUNNING]))
        assert [one.id for one in found] == [reference.id]
        assert await batches.find(chancy, BatchFilter(before=reference.id)) == []


def test_blocking_code_pushes_a_batch(batches_dsn: str) -> None:
    batches = Batches()
    with (
        Chancy(batches_dsn, plugins=[batches]) as chancy,
        psycopg.connect(batches_dsn) as connection,
    ):
        reference = batches.sync_push(
            chancy, Batch(name="b"), [act.job(1), act.job(2)], within=connection
        )
        connection.commit()
        record = reference.sync_get()
        with pytest.raises(WaitTimeout, match="is running after"):
            reference.sync_wait(0.05)
    assert record is not None
    assert record.progress == counted(2, 0, 0, 0)
    assert ask(batches_dsn, "select pending from chancy.batches_shards") == [(2,)]
    assert ask(batches_dsn, "select count(*) from chancy.jobs") == [(2,)]


@pytest.mark.parametrize("field", ["on_success", "on_failure", "on_finish"])
async def test_callbacks_that_cannot_be_are_named(batches_dsn: str, field: str) -> None:
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        for wrong in (
            said.job("x").with_unique(Unique()),
            said.job("x").with_priority(1_000),
            Job(func="tests.plugins.batch.jobs.said", arguments={"no": 1}),
            said.job("x").with_meta(batch=1),
            said,
        ):
            given: dict[str, Any] = {"name": "b", field: wrong}
            with pytest.raises(PushError, match=f"'b': {field}: "):
                await batches.push(chancy, Batch(**given), [act.job(1)])
    assert ask(batches_dsn, "select * from chancy.batches") == []
    with pytest.raises(ConfigurationError, match="name of a batch"):
        Batch(name="")

"""Repairs of outcomes that no settlement has reported."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, LeaseLost, Settlement, State, current_job, job
from chancy.clock import SystemClock
from chancy.plugin.tracking.recorded import MAX_RECORDED
from chancy.plugin.tracking.sweep import GONE_S
from chancy.plugins.batch import Batch, Batches, BatchState
from chancy.plugins.batch.outcomes import BatchOutcomes, BatchRef, ref_of
from chancy.plugins.batch.sweep import BatchSweep
from chancy.testing.clock import ManualClock
from tests.plugins.batch import jobs as batch_jobs
from tests.plugins.batch.batching import (
    ASYNC,
    Unreporting,
    callbacks,
    counts,
    idle,
    sweep_of,
    working,
)
from tests.plugins.batch.jobs import act, adding, held, ran
from tests.support.claims import claimed
from tests.support.sql import ask
from tests.support.waiting import eventually

LONG = pytest.mark.chaos


@job(queue="async")
async def complete(value: int) -> int:
    chancy, _ = batch_jobs.apps[0]
    async with chancy.transaction() as tx:
        await current_job().complete_in(tx, value)
    return 0


@pytest.mark.chaos
async def test_a_job_may_complete_in_its_own_transaction(batches_dsn: str) -> None:
    batches = Batches(sweep_s=3600)
    async with working(batches_dsn, batches) as chancy:
        batch_jobs.apps.append((chancy, batches))
        reference = await batches.push(chancy, callbacks(), [complete.job(5)])
        assert await reference.wait(20) is BatchState.SUCCEEDED


async def test_the_sweep_reports_unreported_outcomes(batches_dsn: str) -> None:
    batches = Unreporting()
    batch_jobs.failing.add(2)
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(), [act.job(n) for n in range(5)])
        await idle(batches_dsn)
        assert await counts(reference) == (5, 0, 0, 0)
        sweep = sweep_of(chancy)
        assert await sweep.turn() == 5
        assert await sweep.turn() == 0
        assert await reference.wait(5) is BatchState.FAILED
        assert await counts(reference) == (0, 4, 1, 0)
        await eventually(lambda: "on finish" in ran)


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_job_that_is_gone_has_failed(batches_dsn: str, stopped: bool) -> None:
    """In a cancelled batch, it counts as cancelled."""
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        reference = await batches.push(chancy, callbacks(), [act.job(n) for n in range(3)])
        ask(batches_dsn, "delete from chancy.jobs")
        clock = ManualClock()
        sweep = sweep_of(chancy, clock=clock)
        assert await sweep.turn() == 0, "their worker may be about to tell"
        clock.advance(GONE_S)
        if stopped:
            ask(batches_dsn, "update chancy.batches set stop_asked_at = now()")
        assert await sweep.turn() == 3
        wanted = BatchState.CANCELLED if stopped else BatchState.FAILED
        assert await reference.wait(5) is wanted


async def test_pruned_history_leaves_no_waiter_stuck(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        jobs = [held.job(0), *[act.job(n) for n in range(1, 6)]]
        reference = await batches.push(chancy, callbacks(), jobs)
        await eventually(lambda: len(ran) == 6)
        await eventually(
            lambda: ask(batches_dsn, "select count(*) from chancy.finished_jobs") == [(5,)]
        )
        # In a thread: it may wait for a lock of the worker, which runs in this event loop.
        await asyncio.to_thread(ask, batches_dsn, "truncate chancy.finished_jobs")
        assert await sweep_of(chancy).turn() == 0
        batch_jobs.gate.set()
        assert await reference.wait(10) is BatchState.SUCCEEDED


@pytest.mark.parametrize("keep_finished", [True, False])
async def test_jobs_that_are_cancelled_alone_or_expire_are_found_by_the_sweep(
    batches_dsn: str, keep_finished: bool
) -> None:
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        await chancy.declare(replace(ASYNC, keep_finished=keep_finished))
        brief = act.job(2).with_expires_at(timedelta(hours=1))
        reference = await batches.push(chancy, callbacks(), [act.job(1), brief])
        ((id,),) = ask(batches_dsn, "select id from chancy.jobs where expires_at is null")
        await chancy.cancel(id)
        ask(batches_dsn, "update chancy.jobs set expires_at = now()")
        ask(batches_dsn, "select chancy.expire(10)")
        assert await sweep_of(chancy).turn() == 2
        assert await reference.wait(5) is BatchState.CANCELLED


async def test_close_and_cancel_survive_a_crash_after_the_first_transaction(
    batches_dsn: str,
) -> None:
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        closed = await batches.push(chancy, Batch(name="b", open=True), [])
        stopped = await batches.push(chancy, Batch(name="b"), [act.job(1)])
        running = await batches.push(chancy, Batch(name="b"), [act.job(1)])
        ask(batches_dsn, "select chancy.batches_close(%s, false)", [closed.id])
        ask(batches_dsn, "select chancy.batches_close(%s, true)", [stopped.id])
        sweep = sweep_of(chancy)
        await sweep.turn()
        await sweep.turn()
        assert await closed.wait(5) is BatchState.SUCCEEDED
        assert await stopped.wait(5) is BatchState.CANCELLED
        found = await running.get()
    assert found is not None
    assert found.state is BatchState.RUNNING


async def test_a_locked_job_of_a_cancelled_batch_does_not_stop_the_sweep(
    batches_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugin.tracking.groups._PATIENCE_S", 0.2)
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        reference = await batches.push(chancy, Batch(name="b"), [act.job(1), act.job(2)])
        sweep = sweep_of(chancy)
        async with await psycopg.AsyncConnection.connect(batches_dsn) as other:
            await other.execute(
                "select from chancy.jobs where arguments @> '{\"number\": 1}' for update"
            )
            await asyncio.wait_for(reference.cancel(), 10)
            await asyncio.wait_for(sweep.turn(), 10)
            assert ask(batches_dsn, "select count(*) from chancy.jobs") == [(1,)]
        for _ in range(2):  # one cancels the job, and the next one finds it
            await sweep.turn()
        assert await reference.wait(5) is BatchState.CANCELLED


#: Refuses the callbacks of one batch.
REFUSE = """
create or replace function chancy.refuse() returns trigger language plpgsql as $$
begin
  raise exception 'not this one' using errcode = 'check_violation';
end $$;
create trigger refuse before insert on chancy.jobs for each row
  when (new.meta -> 'batch' ->> 'of' = '{}') execute function chancy.refuse();
"""


@pytest.mark.parametrize("on", ["finish", "failure"])
async def test_a_batch_whose_callback_is_refused_holds_up_no_other(
    batches_dsn: str, on: str, caplog: pytest.LogCaptureFixture
) -> None:
    batches = Unreporting()
    batch_jobs.failing.add(1)
    callback: dict[str, Any] = {f"on_{on}": act.job(9)}
    async with working(batches_dsn, batches) as chancy:
        bad, good = [
            await batches.push(chancy, Batch(name="b", **callback), [act.job(n) for n in (0, 1)])
            for _ in range(2)
        ]
        await idle(batches_dsn)
        await asyncio.to_thread(ask, batches_dsn, REFUSE.format(bad.id))
        sweep = sweep_of(chancy)
        assert await sweep.turn() == 2
        assert await good.wait(5) is BatchState.FAILED
        assert await counts(bad) == (2, 0, 0, 0)
        (record,) = [one for one in caplog.records if "outcomes_postponed" in one.message]
        assert str(bad.id) in record.message
        assert "not this one" in record.message
        await asyncio.to_thread(ask, batches_dsn, "drop trigger refuse on chancy.jobs")
        assert await sweep.turn() == 2
        assert await bad.wait(5) is BatchState.FAILED


async def test_a_batch_that_cannot_end_holds_up_no_other(
    batches_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        empty = [Batch(name="b", open=True, on_finish=act.job(9)) for _ in range(3)]
        bad, good, other = [await batches.push(chancy, one, []) for one in empty]
        ask(batches_dsn, REFUSE.format(bad.id))
        for one in (bad, good):
            ask(batches_dsn, "select chancy.batches_close(%s, false)", [one.id])
        sweep = sweep_of(chancy)
        await sweep.turn()
        assert await good.wait(5) is BatchState.SUCCEEDED
        assert str(bad.id) in caplog.text
        ask(batches_dsn, "drop trigger refuse on chancy.jobs")
        for _ in range(2):  # from the last one to the first one
            await sweep.turn()
        assert await bad.wait(5) is BatchState.SUCCEEDED
        ask(batches_dsn, REFUSE.format(other.id))
        assert await other.close()


async def test_locked_batches_hold_up_no_others(batches_dsn: str) -> None:
    batches = Unreporting()
    async with working(batches_dsn, batches) as chancy:
        locked, free, empty, ready = [
            await batches.push(chancy, Batch(name="b", open=not jobs), jobs)
            for jobs in ([act.job(1)], [act.job(2)], [], [])
        ]
        await idle(batches_dsn)
        for one in (empty, ready):
            ask(batches_dsn, "select chancy.batches_close(%s, false)", [one.id])
        sweep = sweep_of(chancy)
        async with await psycopg.AsyncConnection.connect(batches_dsn) as other:
            await other.execute(
                "select from chancy.batches where id = any (%s) for update", [[locked.id, empty.id]]
            )
            assert await asyncio.wait_for(sweep.turn(), 8) == 1
            for one in (free, ready):
                assert await one.wait(5) is BatchState.SUCCEEDED
        assert [await sweep.turn() for _ in range(2)] == [1, 0]
        for one in (locked, empty):
            assert await one.wait(5) is BatchState.SUCCEEDED


async def test_a_lock_of_all_batches_is_waited_for_a_few_times(
    batches_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("chancy.plugin.tracking.groups.MOST_HELD", 2)
    batches = Unreporting()
    async with working(batches_dsn, batches) as chancy:
        pushed = [await batches.push(chancy, Batch(name="b"), [act.job(n)]) for n in range(5)]
        await idle(batches_dsn)
        sweep = sweep_of(chancy)
        async with await psycopg.AsyncConnection.connect(batches_dsn) as other:
            await other.execute("select from chancy.batches for update")
            assert await asyncio.wait_for(sweep.turn(), 8) == 0
        assert caplog.text.count("outcomes_postponed") == 2
        assert await sweep.turn() == 5
        for one in pushed:
            assert await one.wait(5) is BatchState.SUCCEEDED


async def test_a_worker_keeps_outcomes_that_no_table_has_until_they_are_stored(
    batches_dsn: str,
) -> None:
    batches, notes = Batches(), BatchOutcomes()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        bad, good = [
            await batches.push(chancy, Batch(name="b", on_finish=act.job(9)), [act.job(1)])
            for _ in range(2)
        ]
        for id, job in ask(batches_dsn, "select batch_id, job_id from chancy.batches_jobs"):
            notes.record(job, BatchRef(id, None))
            end = Settlement(job, claimed().lease, State.SUCCEEDED)
            notes.mark_unreported(notes.outcomes_of([end]))
        ask(batches_dsn, "delete from chancy.jobs")
        ask(batches_dsn, REFUSE.format(bad.id))
        sweep = BatchSweep(chancy.broker, SystemClock(), notes, keep_days=None)
        assert [await sweep.check_recorded() for _ in range(3)] == [0, 1, 0]
        assert await good.wait(5) is BatchState.SUCCEEDED
        ask(batches_dsn, "drop trigger refuse on chancy.jobs")
        assert [await sweep.check_recorded() for _ in range(2)] == [1, 0]
        assert await bad.wait(5) is BatchState.SUCCEEDED


async def test_a_job_whose_cancellation_is_refused_does_not_stop_the_sweep(
    batches_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    batches = Batches()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        reference = await batches.push(chancy, Batch(name="b"), [act.job(1)])
        closed = await batches.push(chancy, Batch(name="b", open=True), [])
        ask(batches_dsn, "select chancy.batches_close(%s, true)", [reference.id])
        ask(batches_dsn, "select chancy.batches_close(%s, false)", [closed.id])
        refuse = REFUSE.format(reference.id).replace("insert", "delete")
        ask(batches_dsn, refuse.replace("new.meta -> 'batch' ->> 'of' = ", "old.id <> "))
        await sweep_of(chancy).turn()
        assert await closed.wait(5) is BatchState.SUCCEEDED
        assert "sweep_refused of=batches part=stop" in caplog.text


async def test_a_zombie_adds_nothing(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        batch_jobs.apps.append((chancy, Zombie(batches_dsn)))
        reference = await batches.push(chancy, callbacks(), [adding.job(0, 20)])
        assert await reference.wait(20) is BatchState.FAILED
        assert await counts(reference) == (0, 0, 1, 0)
    assert ask(batches_dsn, "select count(*) from chancy.batches_jobs") == [(1,)]


class Zombie(Batches):
    """Another worker has claimed the job before it adds jobs."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self.dsn = dsn

    async def add(self, chancy: Any, jobs: Any, **more: Any) -> int:
        job, lease = current_job().id, current_job().lease
        change = "update chancy.jobs set lease = %s where id = %s"
        ask(self.dsn, change, [UUID(int=1), job])
        try:
            with pytest.raises(LeaseLost, match="gets no more jobs"):
                await super().add(chancy, jobs, **more)
        finally:
            ask(self.dsn, change, [lease, job])
        return -1


async def test_old_batches_are_forgotten(batches_dsn: str) -> None:
    batches = Batches()
    batch_jobs.failing.add(1)
    async with working(batches_dsn, batches) as chancy:
        done = [await batches.push(chancy, callbacks(), [act.job(1)]) for _ in range(3)]
        for one in done:
            await one.wait(10)
        open_ = await batches.push(chancy, Batch(name="b", open=True), [])
        old = "update chancy.batches set finished_at = now() - interval '9 days' where id = %s"
        ask(batches_dsn, old, [done[0].id])
        ask(batches_dsn, old, [done[1].id])
        assert await sweep_of(chancy, 8).purge() == 2
        assert await sweep_of(chancy, None).purge() == 0
        assert {one.id for one in await batches.find(chancy)} == {done[2].id, open_.id}
    for table, left in (("jobs", 1), ("shards", 2), ("callbacks", 1)):
        (count,) = ask(batches_dsn, f"select count(distinct batch_id) from chancy.batches_{table}")
        assert count == (left,)


def test_notes_are_bounded_and_take_no_nonsense() -> None:
    for meta in (
        None, "{}", '{"batch": {}}', '{"batch": {"id": 1}}', '{"batch": {"id": "x"}}',
        '{"batch": {"id": "', '["batch": {"id": "]', '{"batch": {"on": "finish", "of": "x"}}',
        json.dumps({"batch": {"id": "x" * 36}}),
    ):  # fmt: skip
        assert ref_of(meta) is None
    said = {"id": str(UUID(int=5))}
    assert ref_of(json.dumps({"batch": said})) == (UUID(int=5), None)
    assert ref_of(json.dumps({"batch": said, "x": 1})) == (UUID(int=5), None)
    letters = {"replay_of": str(UUID(int=6)), "replays": 1}
    again = json.dumps({"batch": said, "dead_letters": letters})
    assert ref_of(again) == (UUID(int=5), UUID(int=6))
    assert MAX_RECORDED == 20_000

"""Successes in a queue without history that a worker reports late, because its jobs were settled
without the hook."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from chancy import Chancy, Settlement, State
from chancy.broker.transaction import Transaction
from chancy.plugins.batch import Batch, Batches, BatchState
from chancy.plugins.batch.outcomes import BatchOutcomes, BatchRef
from chancy.plugins.batch.sweep import BatchSweep
from chancy.testing.clock import ManualClock
from tests.plugins.batch.batching import ASYNC, counted, idle, working
from tests.plugins.batch.jobs import act
from tests.support.claims import claimed
from tests.support.sql import ask
from tests.support.waiting import eventually

BRIEF = replace(ASYNC, keep_finished=False)
#: Refuses the commits of outcomes.
REFUSE = """
create function chancy.refuse() returns trigger language plpgsql as $$
begin
  raise exception 'not now' using errcode = 'check_violation';
end $$;
create constraint trigger refuse after delete on chancy.batches_jobs
  deferrable initially deferred for each row execute function chancy.refuse();
"""


@pytest.fixture(autouse=True)
def checks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchSweep, "check_s", 0.1)


class Losing(Batches):
    """Loses its transactions after it has written in them."""

    def __init__(self) -> None:
        super().__init__(sweep_s=3_600)
        self.calls = 0

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await super().settling(tx, batch)
        self.calls += 1
        await tx.fetch("rollback")


async def test_jobs_that_are_settled_while_the_hook_is_skipped_succeed(
    batches_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.postgres.settle.plugin_writes._MOST_LOST", 1)
    monkeypatch.setattr("chancy.postgres.settle.plugin_writes._SKIPPED_S", 3_600.0)
    batches = Losing()
    async with working(batches_dsn, batches, queue=BRIEF) as chancy:
        await batches.push(chancy, Batch(name="first"), [act.job(0)])
        await idle(batches_dsn)
        reference = await batches.push(chancy, Batch(name="b"), [act.job(n) for n in range(5)])
        assert await reference.wait(10) is BatchState.SUCCEEDED
        assert await reference.progress() == counted(0, 5, 0, 0)
        assert batches.calls == 1


async def test_jobs_whose_commit_with_the_hook_is_refused_succeed(
    batches_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    batches = Batches(sweep_s=3_600)
    ask(batches_dsn, REFUSE)
    async with working(batches_dsn, batches, queue=BRIEF) as chancy:
        reference = await batches.push(chancy, Batch(name="b"), [act.job(n) for n in range(5)])
        await idle(batches_dsn)
        assert "hook_failed plugin=chancy.batches hook=settling" in caplog.text
        # In a thread: it may wait for a lock of the worker, which runs in this event loop.
        await asyncio.to_thread(ask, batches_dsn, "drop trigger refuse on chancy.batches_jobs")
        assert await reference.wait(10) is BatchState.SUCCEEDED
        assert await reference.progress() == counted(0, 5, 0, 0)


async def test_a_check_reports_all_outcomes_that_wait(
    batches_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 1,000 a check, others would be missing for over 15 s, and count as failed."""
    monkeypatch.setattr("chancy.plugin.tracking.sweep.MAX_CHECKED", 2)
    batches, notes, clock = Batches(), BatchOutcomes(), ManualClock()
    async with Chancy(batches_dsn, plugins=[batches]) as chancy:
        reference = await batches.push(chancy, Batch(name="b"), [act.job(n) for n in range(7)])
        for id, job in ask(batches_dsn, "select batch_id, job_id from chancy.batches_jobs"):
            notes.record(job, BatchRef(id, None))
            end = Settlement(job, claimed().lease, State.SUCCEEDED)
            notes.mark_unreported(notes.outcomes_of([end]))
        ask(batches_dsn, "delete from chancy.jobs")
        runtime: Any = SimpleNamespace(clock=clock, leader=SimpleNamespace(leading=False))
        sweep = BatchSweep(chancy.broker, clock, notes, keep_days=None)
        serving = asyncio.create_task(sweep.serve(runtime, 3_600.0))
        try:
            await eventually(lambda: clock.sleepers)
            clock.advance(BatchSweep.check_s)
            await eventually(lambda: clock.sleepers)
            assert await reference.progress() == counted(0, 7, 0, 0)
        finally:
            serving.cancel()
            await asyncio.wait([serving])

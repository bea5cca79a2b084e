"""Successes that a worker reports late, because its hook has failed: no sweep counts them as lost,
also in queues without history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, Queue, Settlement, State
from chancy.broker.transaction import Transaction
from chancy.plugin.tracking.sweep import GONE_S, MissingJobs
from chancy.plugins.workflow import (
    From,
    Workflow,
    WorkflowReference,
    Workflows,
    WorkflowState,
    chain,
)
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import RecordedAttempt, StepOutcomes, StepRef, outcome_of
from chancy.plugins.workflow.outcomes import lost_outcome as missing
from chancy.plugins.workflow.sweep import WorkflowSweep
from chancy.testing.clock import ManualClock
from tests.plugins.workflow import running, steps
from tests.plugins.workflow.running import states
from tests.support.claims import claimed
from tests.support.locks import BLOCKED
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

BRIEF = Queue(name="async", executor="async", keep_finished=False)
#: A session, of the worker or a sweep, waits for the locked row to report the outcome.
HELD_UP = f"""
select true from pg_stat_activity
where {BLOCKED}
  and not exists (select from chancy.jobs)
"""


@pytest.fixture(autouse=True)
def hooks_give_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.postgres.settle.plugin_writes.STATEMENT_S", 0.3)


async def test_a_step_that_succeeded_does_not_fail(flows_dsn: str) -> None:
    flows = Workflows(sweep_s=0.05)
    flow = Workflow("w").add(steps.held.job(), "held", undo=steps.undo.job("held"))
    flow.add(steps.mark.job(), "next", after="held", on_failure="compensate")
    async with running.working(flows_dsn, flows, queue=BRIEF) as chancy:
        reference = await chancy.push(flow)
        with psycopg.connect(flows_dsn) as connection:
            connection.execute("select from chancy.workflows_steps where name = 'held' for update")
            steps.gate.set()
            await eventually(lambda: ask(flows_dsn, HELD_UP))
        assert await reference.wait(10) is WorkflowState.SUCCEEDED
        found = {"held": "succeeded", "undo held": "waiting", "next": "succeeded"}
        assert await states(reference) == found
        held = await reference.step("held")
    assert held is not None
    assert held.result == "held"
    assert steps.ran == ["held", "next"], "nothing was undone"


@pytest.mark.parametrize("gone", [False, True])
async def test_a_late_success_of_a_lost_attempt_does_not_undo_the_failure(
    flows_dsn: str, gone: bool
) -> None:
    """The hook and the commit of the success failed; then another attempt failed for good, and left
    no row. If the job was only presumed gone, its success counts."""
    clock, notes, flows = ManualClock(), StepOutcomes(), Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        reference = await chancy.push(Workflow("w").add(steps.mark.job(), "a"))
        step = present(await reference.step("a"))
        assert step.job_id is not None
        lost, place = claimed()._replace(id=step.job_id), StepRef(reference.id, "a", 1, False)
        notes.record(lost.id, RecordedAttempt(place, 0.1))
        first = Settlement(lost.id, lost.lease, State.SUCCEEDED, result="1")
        notes.mark_unreported(notes.outcomes_of([first]))
        ask(flows_dsn, "delete from chancy.jobs")
        failed = outcome_of(place, lost.id, int(State.FAILED), None, "no", "builtins.ValueError")
        await WorkflowCalls(chancy.broker).advance([missing(place, lost.id) if gone else failed])
        assert await reference.wait(5) is WorkflowState.FAILED
        sweep = WorkflowSweep(chancy.broker, clock, notes, keep_days=None)
        assert [await sweep.check_recorded() for _ in range(2)] == [0, 1]
        assert await states(reference) == {"a": "succeeded" if gone else "failed"}
        wanted = WorkflowState.SUCCEEDED if gone else WorkflowState.FAILED
        assert await reference.wait(5) is wanted


async def test_outcomes_that_no_table_has_are_kept_until_they_are_stored(flows_dsn: str) -> None:
    """Outcomes of a locked workflow are kept; the others are stored."""
    notes, both = StepOutcomes(), list[WorkflowReference]()
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        for _ in range(2):
            reference = await chancy.push(Workflow("w").add(steps.mark.job(), "a"))
            both.append(reference)
            job = present(present(await reference.step("a")).job_id)
            notes.record(job, RecordedAttempt(StepRef(reference.id, "a", 1, False), 0.1))
            end = Settlement(job, claimed().lease, State.SUCCEEDED, result="1")
            notes.mark_unreported(notes.outcomes_of([end]))
        ask(flows_dsn, "delete from chancy.jobs")
        sweep = WorkflowSweep(chancy.broker, ManualClock(), notes, keep_days=None)
        async with await psycopg.AsyncConnection.connect(flows_dsn) as other:
            await other.execute(running.LOCK, [both[0].id])
            async with asyncio.timeout(8):
                assert [await sweep.check_recorded() for _ in range(2)] == [0, 1]
        assert [await sweep.check_recorded() for _ in range(2)] == [1, 0]
        for one in both:
            assert await one.wait(5) is WorkflowState.SUCCEEDED


async def test_a_stopped_step_that_is_reported_late_does_not_end_its_retry(flows_dsn: str) -> None:
    """Its hook failed, so only its worker has the outcome."""
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        reference = await chancy.push(Workflow("w").add(steps.mark.job(), "a"))
        job = present(present(await reference.step("a")).job_id)
        stop = "select chancy.workflows_cancel(%s, 'cancelled', null, null)"
        ask(flows_dsn, stop, [reference.id])
        ask(flows_dsn, "delete from chancy.jobs")
        assert await reference.retry() == 0
        place = StepRef(reference.id, "a", 1, False)
        late = outcome_of(place, job, int(State.CANCELLED), None, None, None)
        assert await WorkflowCalls(chancy.broker).report([late]) == []
        assert await states(reference) == {"a": "pending"}
    async with running.working(flows_dsn, flows) as chancy:
        assert await flows.reference(chancy, reference.id).result(10) == "a"


def test_jobs_missing_for_a_while_count_as_lost() -> None:
    clock = ManualClock()
    absences = MissingJobs(clock, most=2)
    one, two, three = (UUID(int=number) for number in range(3))
    assert absences.lasting([one, two]) == set()
    absences.walked()
    clock.advance(GONE_S - 1)
    assert absences.lasting([one]) == set()
    absences.walked()
    clock.advance(1)
    # Job two was not missing in the walk in between.
    assert absences.lasting([one, two, three]) == {one}
    for _ in range(3):
        absences.walked()
        clock.advance(GONE_S)
        assert two in absences.lasting([two, three])
    assert len(absences) <= 4


class Losing(Workflows):
    """Loses its transactions after it has written in them, as in a failover."""

    def __init__(self) -> None:
        super().__init__(sweep_s=3_600)
        self.calls = 0

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await super().settling(tx, batch)
        self.calls += 1
        await tx.fetch("rollback")


async def test_a_step_whose_transaction_is_lost_after_the_hook_succeeds(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkflowSweep, "check_s", 0.1)
    flows = Losing()
    async with running.working(flows_dsn, flows, queue=BRIEF) as chancy:
        reference = await chancy.push(Workflow("w").add(steps.double.job(4), "eight"))
        assert await reference.result(10) == 8
        assert flows.calls == 1


async def test_steps_that_are_settled_while_the_hook_is_skipped_succeed(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkflowSweep, "check_s", 0.1)
    monkeypatch.setattr("chancy.postgres.settle.plugin_writes._MOST_LOST", 1)
    monkeypatch.setattr("chancy.postgres.settle.plugin_writes._SKIPPED_S", 3_600.0)
    flows = Losing()
    async with running.working(flows_dsn, flows, queue=BRIEF) as chancy:
        await chancy.push(Workflow("first").add(steps.mark.job(), "a"))
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        flow = chain("w", steps.double.job(4), steps.double.job(From()))
        assert await (await chancy.push(flow)).result(10) == 16
        assert flows.calls == 1

"""Repairs of steps that no settlement has reported, and their limits."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, ConfigurationError, PushError, Queue, Settlement, current_job, job
from chancy.broker.transaction import Transaction
from chancy.clock import SystemClock
from chancy.plugin.tables import PluginTables
from chancy.plugin.tracking.sweep import GONE_S
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.workflow import From, StepState, Workflow, Workflows, WorkflowState, chain
from chancy.plugins.workflow.outcomes import RecordedAttempt, StepOutcomes, StepRef
from chancy.plugins.workflow.sweep import WorkflowSweep
from chancy.testing.clock import ManualClock
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import LOCK, Unreporting, states, sweep_of, working
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

APP: list[Chancy] = []


class Failing(Workflows):
    """Its hook fails; its service works."""

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        class Refusing:
            schema = tx.schema

            async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
                return await tx.fetch("select 1 / 0")

        await super().settling(Refusing(), batch)


async def test_the_worker_reports_outcomes_that_its_hook_could_not(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkflowSweep, "check_s", 0.1)
    flows = Failing(sweep_s=3600)
    queue = Queue(name="async", executor="async", keep_finished=False)
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.double.job(4), "four").add(steps.double.job(From("four")), "end")
    flow.add(steps.once.job(), "bad", after="end", on_failure="ignore")
    async with working(flows_dsn, flows, queue=queue) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(20) is WorkflowState.SUCCEEDED
        end = present(await reference.step("end"))
        assert (end.state, end.result) == (StepState.SUCCEEDED, 16)


async def test_a_worker_that_stops_reports_outcomes_that_its_hook_could_not(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkflowSweep, "check_s", 3_600.0)
    queue = Queue(name="async", executor="async", keep_finished=False)
    async with working(flows_dsn, Failing(sweep_s=3_600), queue=queue) as chancy:
        reference = await chancy.push(chain("w", steps.double.job(4)))
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
    assert ask(flows_dsn, "select id, state from chancy.workflows") == [(reference.id, 4)]


async def test_late_settlements_reach_the_hook(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of a job is locked, so that its settlement takes longer than the service waits."""
    monkeypatch.setattr(WorkflowSweep, "check_s", 0.1)
    flows = Workflows(sweep_s=3600)
    queue = Queue(name="async", executor="async", keep_finished=False)
    async with working(flows_dsn, flows, queue=queue) as chancy:
        reference = await chancy.push(chain("w", steps.held.job()))
        await eventually(lambda: steps.ran == ["held"])
        with psycopg.connect(flows_dsn) as connection:
            connection.execute("select from chancy.jobs for update")
            steps.gate.set()
            await asyncio.sleep(0.5)  # five checks, in which nothing may happen
        assert await reference.result(10) == "held"


@job(queue="async")
async def complete(value: int) -> int:
    async with APP[0].transaction() as tx:
        await current_job().complete_in(tx, value)
    return 0


async def test_a_step_may_complete_in_its_own_transaction(flows_dsn: str) -> None:
    APP.clear()
    flows = Workflows(sweep_s=3600)
    flow = Workflow("w").add(complete.job(5), "own").add(steps.anything.job(From("own")), "next")
    async with working(flows_dsn, flows) as chancy:
        APP.append(chancy)
        assert await (await chancy.push(flow)).result(20) == 5


async def test_the_sweep_reports_unreported_outcomes(flows_dsn: str) -> None:
    flows = Unreporting()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.double.job(4), "four").add(steps.once.job(), "bad")
    flow.add(steps.double.job(From("four")), "eight")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        sweep = sweep_of(chancy)
        four = present(await reference.step("four"))
        assert four.state is StepState.ENDING
        assert await sweep.turn() == 2
        assert await reference.wait(10) is WorkflowState.FAILED
        bad = present(await reference.step("bad"))
        assert bad.error == {"type": "builtins.ValueError", "message": "bad fails"}
        steps.failing.clear()
        assert await reference.retry() == 1
        for _ in range(2):
            await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
            await sweep.turn()
        assert await reference.result(10) == {"bad": "bad", "eight": 16}
        assert await sweep.turn() == 0


@pytest.mark.parametrize("held", [0, 1])
async def test_a_locked_workflow_holds_up_no_other(flows_dsn: str, held: int) -> None:
    async with working(flows_dsn, Unreporting()) as chancy:
        both = [await chancy.push(chain("w", steps.mark.job())) for _ in range(2)]
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        sweep = sweep_of(chancy)
        async with await psycopg.AsyncConnection.connect(flows_dsn) as other:
            await other.execute(LOCK, [both[held].id])
            assert await asyncio.wait_for(sweep.turn(), 8) == 1
            assert await both[1 - held].wait(5) is WorkflowState.SUCCEEDED
        assert await sweep.turn() == 1
        assert await both[held].wait(5) is WorkflowState.SUCCEEDED


async def test_a_locked_workflow_does_not_hold_up_settlements(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first settlement waits for two seconds, and the next ones do not wait."""
    monkeypatch.setattr("chancy.postgres.settle.plugin_writes.STATEMENT_S", 60.0)
    monkeypatch.setattr("chancy.postgres.settle.plugin_writes.PLUGIN_S", 60.0)
    monkeypatch.setattr("chancy.plugins.workflow.workflows._SKIP_LOCKED_S", 3_600.0)
    monkeypatch.setattr("chancy.containment.LOG_EVERY_S", 0.0)
    queue = Queue(name="async", executor="async", keep_finished=False)
    flow = Workflow("w").add(steps.held.job(), "x").add(steps.mark.job().with_delay(3_600), "y")
    async with working(flows_dsn, Workflows(), queue=queue) as chancy:
        held = await chancy.push(flow)
        later = present(present(await held.step("y")).job_id)
        await eventually(lambda: steps.ran == ["x"])
        async with await psycopg.AsyncConnection.connect(flows_dsn) as other:
            await other.execute(LOCK, [held.id])
            steps.gate.set()
            await eventually(lambda: "hook_failed" in caplog.text)
            await chancy.run_now(later)
            await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
            free = await chancy.push(chain("w", steps.double.job(1), steps.double.job(From())))
            assert await free.result(10) == 4
            assert set((await states(held)).values()) == {"ending"}
        assert await held.result(10) == {"x": "x", "y": "y"}
    assert caplog.text.count("hook_failed") == 1


@job(queue="async", max_attempts=1)
async def large() -> str:
    """900 KB that the server cannot compress."""
    if "large" in steps.failing:
        raise ValueError
    return secrets.token_urlsafe(675_000)


def twelve_large() -> Workflow:
    flow = Workflow("w")
    for number in range(12):
        flow.add(large.job(), f"s{number:02}")
    return flow


async def test_large_results_are_read_a_few_at_a_time(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[tuple[str, int]] = []
    fetch = PluginTables.fetch

    async def counted(tables: PluginTables, name: str, *given: object) -> Sequence[Any]:
        rows = await fetch(tables, name, *given)
        if name in ("results", "show"):
            counts.append((name, len(rows)))
        return rows

    async with working(flows_dsn, Workflows()) as chancy:
        reference = await chancy.push(twelve_large())
        assert await reference.wait(10) is WorkflowState.SUCCEEDED
        monkeypatch.setattr(PluginTables, "fetch", counted)
        results = await reference.result(10)
        assert sorted(results) == [f"s{number:02}" for number in range(12)]
        assert [step.result for step in await reference.steps()] == [*results.values()]
        assert counts == [("results", 10), ("results", 2), ("show", 10), ("show", 2), ("show", 0)]


async def test_large_results_are_reported_a_few_at_a_time(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkflowSweep, "max_pages", 1)
    async with working(flows_dsn, Unreporting()) as chancy:
        reference = await chancy.push(twelve_large())
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        sweep = sweep_of(chancy)
        assert [await sweep.turn() for _ in range(3)] == [10, 2, 0]
        assert await reference.wait(10) is WorkflowState.SUCCEEDED


async def test_large_results_of_recorded_attempts_are_reported_a_few_at_a_time(
    flows_dsn: str,
) -> None:
    async with working(flows_dsn, Unreporting()) as chancy:
        reference = await chancy.push(twelve_large())
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        recorded = StepOutcomes()
        for step in await reference.steps():
            assert step.job_id is not None
            ref = StepRef(reference.id, step.name, 1, False)
            recorded.record(step.job_id, RecordedAttempt(ref, 0.1))
        sweep = WorkflowSweep(chancy.broker, SystemClock(), recorded, keep_days=None)
        # The first check leaves out new ones.
        assert [await sweep.check_recorded() for _ in range(4)] == [0, 10, 2, 0]
        assert len(recorded) == 0
        assert await reference.wait(10) is WorkflowState.SUCCEEDED


async def test_large_results_of_replays_are_reported_a_few_at_a_time(flows_dsn: str) -> None:
    dead = DeadLetters()
    steps.failing.add("large")
    async with working(flows_dsn, Unreporting(), dead) as chancy:
        reference = await chancy.push(twelve_large())
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        sweep = sweep_of(chancy)
        assert await sweep.turn() == 12
        assert await reference.wait(10) is WorkflowState.FAILED
        steps.failing.clear()
        assert await dead.replay_all(chancy) == 12
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        assert [await sweep.turn() for _ in range(3)] == [10, 2, 0]
        assert await reference.wait(10) is WorkflowState.SUCCEEDED


async def test_the_sweep_starts_pending_undo_steps(flows_dsn: str) -> None:
    flows = Unreporting()
    flow = Workflow("w").add(steps.once.job(), "done", undo=steps.undo.job(From("done")))
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow.wait_for("never"))
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        sweep = sweep_of(chancy)
        assert await sweep.turn() == 1
        # As if the last running step had ended while another one requested compensation.
        ask(flows_dsn, "update chancy.workflows set state = 2, failed = 1")
        await sweep.turn()
        await eventually(lambda: "undo done" in steps.ran)
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        await sweep.turn()
        assert await reference.wait(10) is WorkflowState.COMPENSATED


async def test_a_job_that_is_gone_fails_its_step(
    flows_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        reference = await chancy.push(chain("w", steps.mark.job(), steps.mark.job()))
        ask(flows_dsn, "delete from chancy.jobs")
        clock = ManualClock()
        sweep = sweep_of(chancy, clock=clock)
        assert await sweep.turn() == 0, "its worker may be about to tell"
        clock.advance(GONE_S)
        assert await sweep.turn() == 1
        assert "jobs_gone of=workflows count=1" in caplog.text
        found = await reference.step("mark")
    assert found is not None
    assert found.state is StepState.FAILED
    assert found.error is not None
    assert "is gone" in found.error["message"]


async def test_steps_of_a_locked_workflow_are_lost_later(flows_dsn: str) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        held, free = [await chancy.push(chain("w", steps.mark.job())) for _ in range(2)]
        ask(flows_dsn, "delete from chancy.jobs")
        clock = ManualClock()
        sweep = sweep_of(chancy, clock=clock)
        await sweep.turn()
        clock.advance(GONE_S)
        async with await psycopg.AsyncConnection.connect(flows_dsn) as other:
            await other.execute(LOCK, [held.id])
            assert await asyncio.wait_for(sweep.turn(), 8) == 1
            assert await states(free) == {"mark": "failed"}
        assert await sweep.turn() == 1
        assert await states(held) == {"mark": "failed"}


async def test_pruned_history_leaves_no_waiter_stuck(flows_dsn: str) -> None:
    flows = Workflows()
    flow = chain("w", steps.double.job(1), steps.double.job(From()))
    flow.wait_for("go", after="double 2").add(steps.double.job(From("double 2")), "d", after="go")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)

        async def waits() -> bool:
            found = await reference.step("go")
            return found is not None and found.state is StepState.AWAITING_SIGNAL

        await eventually(waits)
        # In a thread: it waits for transactions of the worker, which runs in this event loop.
        await asyncio.to_thread(ask, flows_dsn, "truncate chancy.finished_jobs")
        assert await sweep_of(chancy).turn() == 0
        await reference.signal("go")
        assert await reference.result(10) == 8


async def test_the_sweep_goes_round_in_bounded_steps(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugins.workflow.sweep.WorkflowSweep.page", 3)
    monkeypatch.setattr("chancy.plugins.workflow.sweep.WorkflowSweep.max_pages", 2)
    flows = Unreporting()
    ids: list[UUID] = []
    async with working(flows_dsn, flows) as chancy:
        for _ in range(5):
            flow = Workflow("w").add(steps.mark.job(), "a").add(steps.mark.job(), "b")
            ids.append((await chancy.push(flow.wait_for("never"))).id)
        await eventually(lambda: len(steps.ran) == 10)
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        sweep = sweep_of(chancy)
        turns = [await sweep.turn() for _ in range(6)]
    assert sum(turns) == 10
    assert max(turns) <= 6


async def test_old_workflows_are_forgotten(flows_dsn: str) -> None:
    flows = Workflows()
    async with working(flows_dsn, flows) as chancy:
        done = [await chancy.push(chain("w", steps.mark.job())) for _ in range(3)]
        for one in done:
            await one.wait(10)
        over = await chancy.push(Workflow("w").wait_for("never", timeout_s=3600))
        assert await over.cancel()
        open_ = await chancy.push(Workflow("w").wait_for("never"))
        old = "update chancy.workflows set finished_at = now() - interval '9 days' where id = %s"
        ask(flows_dsn, old, [done[0].id])
        ask(flows_dsn, old, [done[1].id])
        ask(flows_dsn, old, [over.id])
        assert await sweep_of(chancy, 8).purge() == 3
        assert await sweep_of(chancy, None).purge() == 0
        assert {one.id for one in await flows.find(chancy)} == {done[2].id, open_.id}
    for table in ("steps", "joins"):
        (count,) = ask(
            flows_dsn, f"select count(distinct workflow_id) from chancy.workflows_{table}"
        )
        assert count == (2,)
    assert ask(flows_dsn, "select name from chancy.workflows_timers") == []


async def test_workflows_that_cannot_be_purged_stop_no_sweep(
    flows_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        reference = await chancy.push(chain("w", steps.mark.job()))
        assert await reference.cancel()
    ask(flows_dsn, "update chancy.workflows set finished_at = now() - interval '9 days'")
    ask(flows_dsn, "create table public.orders (flow uuid references chancy.workflows)")
    ask(flows_dsn, "insert into public.orders select id from chancy.workflows")
    async with working(flows_dsn, Workflows(keep_days=8, sweep_s=0.1)) as chancy:
        await eventually(lambda: "sweep_refused of=workflows part=purge" in caplog.text)
        waiting = await chancy.push(Workflow("w").wait_for("go", timeout_s=0.1, default=1))
        assert await waiting.wait(10) is WorkflowState.SUCCEEDED
    assert "hook_failed" not in caplog.text


@pytest.mark.parametrize("purged", ["a", "bad", "z", ""])
async def test_a_workflow_of_which_steps_were_purged_is_not_retried(
    flows_dsn: str, purged: str
) -> None:
    flows = Workflows()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.once.job(), "a").add(steps.once.job(), "bad", after="a")
    flow.add(steps.once.job(), "z", after="bad")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED
        gone = "delete from chancy.workflows_steps where name = %s or %s = ''"
        await asyncio.to_thread(ask, flows_dsn, gone, [purged, purged])
        with pytest.raises(PushError, match="some of its steps were purged"):
            await reference.retry()
        assert present(await reference.get()).state is WorkflowState.FAILED


@pytest.mark.parametrize("purged", ["a", "z"])
async def test_a_replay_does_not_resume_a_workflow_of_which_steps_were_purged(
    flows_dsn: str, purged: str
) -> None:
    flows, dead = Workflows(), DeadLetters()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.once.job(), "a").add(steps.once.job(), "bad", after="a")
    flow.add(steps.once.job(), "z", after="bad")
    async with working(flows_dsn, flows, dead) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED
        gone = "delete from chancy.workflows_steps where name = %s"
        await asyncio.to_thread(ask, flows_dsn, gone, [purged])
        steps.failing.clear()
        (letter,) = await dead.find(chancy)
        await chancy.wait_for(present(await dead.replay(chancy, letter.id)), 10)
        assert (await states(reference))["bad"] == "succeeded"
        assert present(await reference.get()).state is WorkflowState.FAILED
        ask(flows_dsn, "update chancy.workflows set finished_at = now() - interval '9 days'")
        assert await sweep_of(chancy, 8).purge() == 1
    assert "z" not in steps.ran


async def test_a_workflow_that_is_being_retried_is_not_purged(flows_dsn: str) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        reference = await chancy.push(chain("w", steps.mark.job()))
        assert await reference.cancel()
        ask(flows_dsn, "update chancy.workflows set finished_at = now() - interval '9 days'")
        async with await psycopg.AsyncConnection.connect(flows_dsn) as other:
            await other.execute(LOCK, [reference.id])
            assert await asyncio.wait_for(sweep_of(chancy, 8).purge(), 8) == 0
        assert await reference.retry() == 1


@pytest.mark.parametrize(
    "given", [{"keep_days": 0}, {"sweep_s": 0}, {"sweep_s": 1e9}, {"sweep_s": "5"}]
)
def test_settings_that_cannot_be(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Workflows(**given)


@pytest.mark.chaos
async def test_a_replay_whose_worker_died_resumes_its_workflow(flows_dsn: str) -> None:
    flows, dead = Workflows(sweep_s=3600), DeadLetters()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.once.job(), "bad").add(steps.mark.job(), "end", after="bad")
    async with working(flows_dsn, flows, dead) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED
        bad = present(await reference.step("bad"))
        assert bad.job_id is not None
    # The workers report neither the failed replay, nor the replay of that one.
    async with working(flows_dsn, Unreporting(), dead) as chancy:
        first = present(await dead.replay(chancy, bad.job_id))
        await chancy.wait_for(first, 10)
        steps.failing.clear()
        again = present(await dead.replay(chancy, first))
        await chancy.wait_for(again, 10)
        sweep = sweep_of(chancy)
        assert await sweep.turn() == 1
        reference = flows.reference(chancy, reference.id)
        assert (await states(reference))["bad"] == "succeeded"
    async with working(flows_dsn, flows, dead) as chancy:
        assert await flows.reference(chancy, reference.id).result(10) == "end"
        assert await sweep_of(chancy).turn() == 0

"""Steps that the sweep finds: not started, without a job, or refused."""

from __future__ import annotations

import asyncio
from typing import Literal

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.workflow import Workflow, Workflows, WorkflowState
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import StepOutcome, StepRef, advance_statement
from chancy.plugins.workflow.outcomes import lost_outcome as lost
from chancy.plugins.workflow.timers import SignalTimeouts
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import Unreporting, is_in, states, sweep_of, working
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("replayed", "policy"), [(False, "fail"), (True, "ignore"), (True, "compensate")]
)
async def test_a_step_that_could_not_begin_is_not_gone(
    flows_dsn: str, policy: Literal["fail", "ignore", "compensate"], replayed: bool
) -> None:
    """A success after a failure releases steps that do not start, so they have no job yet."""
    flows, dead = Workflows(sweep_s=3600), DeadLetters()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.once.job(), "bad").add(steps.held.job(), "quick")
    flow.add(steps.held.job(), "slow")
    flow.add(steps.once.job(), "late", after="quick", on_failure=policy)
    async with working(flows_dsn, flows, dead) as chancy:
        reference = await chancy.push(flow)
        await eventually(lambda: is_in(reference, WorkflowState.FAILING))
        await eventually(lambda: {"quick", "slow"} <= set(steps.ran))
        quick = present(await reference.step("quick"))
        assert quick.job_id is not None
        # As if it had ended after the failure while the other one runs.
        end = StepOutcome(
            StepRef(reference.id, "quick", 1, False), quick.job_id, 4, '"quick"', None, None
        )
        await WorkflowCalls(chancy.broker).advance([end])
        sweep = sweep_of(chancy)
        assert await sweep.turn() == 0
        assert (await states(reference))["late"] == "waiting"
        steps.gate.set()
        assert await reference.wait(10) is WorkflowState.FAILED
        assert await sweep.turn() == 0
        steps.failing.clear()
        bad = present(await reference.step("bad"))
        if replayed and bad.job_id is not None:
            again = present(await dead.replay(chancy, bad.job_id))
            await chancy.wait_for(again, 10)
        else:
            assert await reference.retry() == 1
        assert (await reference.result(10))["late"] == "late"


async def test_a_step_whose_job_is_there_after_all_does_not_fail(flows_dsn: str) -> None:
    """The sweep sees the step without a job, which is pushed before the loss is reported."""
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        flow = Workflow("w").add(steps.mark.job(), "there").add(steps.mark.job(), "gone")
        reference = await chancy.push(flow)
        gone = present(await reference.step("gone"))
        assert gone.job_id is not None
        ask(flows_dsn, "delete from chancy.jobs where id = %s", [gone.job_id])
        losses = [
            lost(StepRef(reference.id, name, 1, False), gone.job_id) for name in ("gone", "there")
        ]
        assert await WorkflowCalls(chancy.broker).lose(losses) == 1
        assert await states(reference) == {"there": "pending", "gone": "failed"}


REFUSE = """
create function chancy.refuse() returns trigger language plpgsql as $$
begin
  raise exception 'not this one' using errcode = 'check_violation';
end $$;
create trigger refuse before update on chancy.workflows_steps for each row
  when (new.name = 'refused' and new.state = 4) execute function chancy.refuse();
"""


BOTH_DUE = "select count(*) = 2 from chancy.workflows_timers where due_at <= clock_timestamp()"


async def test_a_step_that_the_server_refuses_stops_no_other(flows_dsn: str) -> None:
    async with working(flows_dsn, Unreporting()) as chancy:
        flow = Workflow("w").add(steps.mark.job(), "refused").add(steps.mark.job(), "taken")
        reference = await chancy.push(flow)
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        await asyncio.to_thread(ask, flows_dsn, REFUSE)
        assert await sweep_of(chancy).turn() == 2
        assert await states(reference) == {"refused": "failed", "taken": "succeeded"}
        refused = present(await reference.step("refused"))
        assert refused.error is not None
        assert "not this one" in refused.error["message"]


async def test_a_timer_that_the_server_refuses_stops_no_other(flows_dsn: str) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        flow = Workflow("w").wait_for("refused", timeout_s=0.01, default=1)
        flow.wait_for("taken", timeout_s=0.01, default=2)
        reference = await chancy.push(flow)
        await asyncio.to_thread(ask, flows_dsn, REFUSE)
        # In one turn: once "refused" has failed, the workflow ends no other wait.
        await eventually(lambda: ask(flows_dsn, BOTH_DUE) == [(True,)])
        assert await SignalTimeouts(chancy.broker).turn() == 2
        assert await states(reference) == {"refused": "failed", "taken": "succeeded"}


async def test_a_replay_that_the_server_refuses_stops_no_other(flows_dsn: str) -> None:
    flows, dead = Workflows(sweep_s=3600), DeadLetters()
    names = ("refused", "taken")
    steps.failing.update(names)
    flow = Workflow("w").add(steps.once.job(), "refused").add(steps.once.job(), "taken")
    async with working(flows_dsn, flows, dead) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED
        jobs = [step.job_id for step in await reference.steps()]
    steps.failing.clear()
    async with working(flows_dsn, Unreporting(), dead) as chancy:
        for job in jobs:
            assert job is not None
            again = present(await dead.replay(chancy, job))
            await chancy.wait_for(again, 10)
        await asyncio.to_thread(ask, flows_dsn, REFUSE)
        await sweep_of(chancy).turn()
        found = await states(flows.reference(chancy, reference.id))
        assert found == {"refused": "failed", "taken": "succeeded"}


async def test_steps_with_open_dependencies_are_in_no_piece(flows_dsn: str) -> None:
    """The start of a piece at the same time does not start the step a second time."""
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        flow = Workflow("w").add(steps.mark.job(), "a").add(steps.mark.job(), "b")
        for name in ("c", "d"):
            flow.add(steps.mark.job(), name, after="a")
        flow.add(steps.mark.job(), "join", after=["a", "b"])
        reference = await chancy.push(flow)
        left = "select names from chancy.workflows_starts"
        for step, pieces in (("a", [(["d"],)]), ("b", [(["d"],)])):
            found = present(await reference.step(step))
            assert found.job_id is not None
            end = StepOutcome(
                StepRef(reference.id, step, 1, False), found.job_id, 4, None, None, None
            )
            sql, *parameters = advance_statement("chancy", [end], most=1)
            with psycopg.connect(flows_dsn, autocommit=True) as connection:
                psycopg.RawCursor(connection).execute(sql.encode(), parameters)
            assert ask(flows_dsn, left) == pieces
        assert (await states(reference))["join"] == "pending"

"""Workflows that compensate."""

from __future__ import annotations

import pytest

from chancy import Chancy, PushError, State
from chancy.job.ids import new_id
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.workflow import (
    From,
    OnFailure,
    Workflow,
    WorkflowFailed,
    Workflows,
    WorkflowState,
)
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import StepOutcome, StepRef
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import is_in, states, sweep_of, working
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

#: The job of a step.
BEGUN = "select 1 from chancy.jobs where meta #>> '{workflow,step}' = %s"


@pytest.mark.parametrize("first", ["plain", "saga"])
async def test_any_step_that_asks_for_it_has_the_others_undone(flows_dsn: str, first: str) -> None:
    flows = Workflows()
    steps.failing |= {"plain", "saga"}
    last = "saga" if first == "plain" else "plain"
    flow = Workflow("w").add(steps.mark.job(), "done", undo=steps.undo.job(From("done")))
    for name in ("plain", "saga"):
        made = steps.once.job() if name == first else steps.late.job()
        policy: OnFailure = OnFailure.COMPENSATE if name == "saga" else OnFailure.FAIL
        flow.add(made, name, after="done", on_failure=policy)
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        before = WorkflowState.FAILING if first == "plain" else WorkflowState.COMPENSATING
        await eventually(lambda: is_in(reference, before))
        await eventually(lambda: last in steps.ran)
        steps.gate.set()
        assert await reference.wait(10) is WorkflowState.COMPENSATED
        assert steps.ran[-1] == "undo done"


def saga() -> Workflow:
    flow = Workflow("trip")
    for name, after in (("flight", ()), ("hotel", "flight"), ("car", "hotel")):
        flow.add(steps.once.job(), name, after=after, undo=steps.undo.job(From(name)))
    return flow.add(steps.once.job(), "pay", after="car", on_failure="compensate")


async def test_completed_steps_are_undone_in_reverse_order(flows_dsn: str) -> None:
    flows = Workflows()
    steps.failing.add("pay")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(saga())
        with pytest.raises(WorkflowFailed, match="step pay has failed") as caught:
            await reference.result(10)
        assert caught.value.state is WorkflowState.COMPENSATED
        with pytest.raises(PushError, match="is compensated, and cannot be retried"):
            await reference.retry()
    assert steps.ran == ["flight", "hotel", "car", "pay", "undo car", "undo hotel", "undo flight"]


async def test_undoing_waits_for_what_still_runs(flows_dsn: str) -> None:
    flows = Workflows()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.held.job(), "slow", undo=steps.undo.job(From("slow")))
    flow.add(steps.once.job(), "quick", undo=steps.undo.job(From("quick")))
    flow.add(steps.once.job(), "bad", after="quick", on_failure="compensate")
    flow.add(steps.mark.job(), "never", after="slow")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)

        await eventually(lambda: is_in(reference, WorkflowState.COMPENSATING))
        assert not any(name.startswith("undo") for name in steps.ran)
        steps.gate.set()
        assert await reference.wait(10) is WorkflowState.COMPENSATED
    assert steps.ran[-2:] == ["undo slow", "undo quick"]
    assert "never" not in steps.ran


async def test_an_undo_that_fails_stops_and_continues_when_it_is_retried(flows_dsn: str) -> None:
    flows = Workflows()
    steps.failing |= {"pay", "undo hotel"}
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(saga())
        assert await reference.wait(10) is WorkflowState.FAILED
        assert steps.ran[-2:] == ["undo car", "undo hotel"]
        steps.failing.clear()
        assert await reference.retry() == 1
        assert await reference.wait(10) is WorkflowState.COMPENSATED
    assert steps.ran[-2:] == ["undo hotel", "undo flight"]


async def test_ignored_failures_are_never_undone(flows_dsn: str) -> None:
    flows = Workflows()
    steps.failing |= {"ignored", "pay", "undo done"}
    flow = Workflow("w")
    for name in ("ignored", "done"):
        policy: OnFailure = OnFailure.IGNORE if name == "ignored" else OnFailure.FAIL
        flow.add(steps.once.job(), name, undo=steps.undo.job(name), on_failure=policy)
    flow.add(steps.once.job(), "pay", after=["ignored", "done"], on_failure="compensate")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED
        # While it compensates, the missing job is not found.
        ask(flows_dsn, "update chancy.workflows set state = 2, finished_at = null")
        assert await sweep_of(chancy).turn() == 0
        ask(flows_dsn, "update chancy.workflows set state = 5, finished_at = now()")
        steps.failing.clear()
        assert await reference.retry() == 1
        assert await reference.wait(10) is WorkflowState.COMPENSATED
        assert (await states(reference))["undo ignored"] == "cancelled"
    assert "undo ignored" not in steps.ran


async def test_once_it_is_undone_nothing_else_of_it_counts(flows_dsn: str) -> None:
    """Neither a replay of the failed step, nor a late report of another one."""
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        reference = await chancy.push(saga().add(steps.mark.job(), "slow"))

        async def tell(step: str, state: State, *, again: bool = False) -> None:
            ask(flows_dsn, BEGUN.replace("select 1", "delete"), [step])
            end = StepOutcome(
                StepRef(reference.id, step, 1, again), new_id(), int(state), '"x"', None, 0.1
            )
            await WorkflowCalls(chancy.broker).advance([end])

        ask(flows_dsn, BEGUN.replace("select 1", "delete"), ["slow"])
        for step in ("flight", "hotel", "car"):
            await tell(step, State.SUCCEEDED)
        await tell("pay", State.FAILED)
        await tell("pay", State.SUCCEEDED, again=True)
        await tell("slow", State.SUCCEEDED)
        assert (await states(reference))["pay"] == "failed"
        for step in ("undo car", "undo hotel", "undo flight"):
            assert await is_in(reference, WorkflowState.COMPENSATING)
            assert ask(flows_dsn, BEGUN, [step]) == [(1,)]
            await tell(step, State.SUCCEEDED)
        assert await is_in(reference, WorkflowState.COMPENSATED)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("other", [State.SUCCEEDED, State.FAILED])
async def test_a_replay_counts_until_something_is_undone(
    flows_dsn: str, other: State, together: bool
) -> None:
    """Then nothing is undone, unless another step has failed, too."""
    flow = Workflow("w")
    for name in ("slow", "pay", "other"):
        flow.add(steps.once.job(), name, undo=steps.undo.job(name), on_failure="compensate")
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        reference = await chancy.push(flow)

        async def tell(*ends: tuple[str, State, bool]) -> None:
            for step, _, _ in ends:
                ask(flows_dsn, BEGUN.replace("select 1", "delete"), [step])
            outcomes = [
                StepOutcome(
                    StepRef(reference.id, step, 1, again), new_id(), int(state), None, None, None
                )
                for step, state, again in ends
            ]
            await WorkflowCalls(chancy.broker).advance(outcomes)

        await tell(("pay", State.FAILED, False), ("other", other, False))
        assert await is_in(reference, WorkflowState.COMPENSATING)
        last = [("pay", State.SUCCEEDED, True), ("slow", State.SUCCEEDED, False)]
        for ends in [last] if together else [[end] for end in last]:
            await tell(*ends)
        undone = ask(flows_dsn, "select 1 from chancy.jobs")
        if other is State.SUCCEEDED:
            assert await is_in(reference, WorkflowState.SUCCEEDED)
            assert undone == []
        else:
            assert await is_in(reference, WorkflowState.COMPENSATING)
            assert undone == [(1,)]


async def test_the_sweep_makes_no_replay_count_once_it_is_undone(flows_dsn: str) -> None:
    flows, dead = Workflows(sweep_s=3600), DeadLetters()
    steps.failing |= {"pay", "undo hotel"}
    async with working(flows_dsn, flows, dead) as chancy:
        reference = await chancy.push(saga())
        assert await reference.wait(10) is WorkflowState.FAILED
        found = await dead.find(chancy)
        letters = {letter.meta["workflow"]["step"]: letter for letter in found}
        steps.failing.clear()
        id = present(await dead.replay(chancy, letters["pay"].id))
        await chancy.wait_for(id, 10)
        assert await sweep_of(chancy).turn() == 0
        assert await is_in(reference, WorkflowState.FAILED)
        assert await dead.replay(chancy, letters["undo hotel"].id) is not None
        await eventually(lambda: is_in(reference, WorkflowState.COMPENSATED))
    assert steps.ran[-2:] == ["undo hotel", "undo flight"]

"""Steps that wait for a signal with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from chancy import Chancy, JobCancelled, PushError
from chancy.plugins.workflow import (
    From,
    OnFailure,
    StepState,
    Workflow,
    WorkflowFailed,
    WorkflowReference,
    Workflows,
    WorkflowState,
)
from chancy.plugins.workflow.outcomes import SQL
from chancy.plugins.workflow.timers import SignalTimeout, SignalTimeouts
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import LOCK, is_in, states, working
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

TIMERS = "select name, run from chancy.workflows_timers order by name"
#: Refuses to end a workflow.
REFUSE = """
create function chancy.refuse() returns trigger language plpgsql as $$
begin
  raise exception 'not this one' using errcode = 'check_violation';
end $$;
create trigger refuse before update on chancy.workflows for each row
  when (new.id = '{}' and new.state > 3) execute function chancy.refuse();
"""
DUE = "update chancy.workflows_timers set due_at = now() - interval '1 second'"


async def begun(reference: WorkflowReference, name: str = "go") -> bool:
    step = await reference.step(name)
    return step is not None and step.state is StepState.AWAITING_SIGNAL


@pytest.mark.parametrize("default", [None, 0, {"what": ["bus"]}])
async def test_a_default_is_the_result_when_no_signal_comes(flows_dsn: str, default: Any) -> None:
    flows = Workflows(sweep_s=0.1)
    flow = Workflow("w").wait_for("go", timeout_s=0.1, default=default)
    flow.add(steps.anything.job(From("go")), "end")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.result(10) == default
        with pytest.raises(PushError, match="has ended without it"):
            await reference.signal("go", "late")
        await eventually(lambda: ask(flows_dsn, TIMERS) == [])


async def test_without_a_default_the_step_fails(flows_dsn: str) -> None:
    flows = Workflows(sweep_s=0.1)
    flow = Workflow("w").add(steps.once.job(), "done", undo=steps.undo.job(From("done")))
    flow.wait_for("go", after="done", timeout_s=timedelta(seconds=0.1), on_failure="compensate")
    other = Workflow("w").wait_for("go", timeout_s=0.1).add(steps.mark.job(), "end", after="go")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.COMPENSATED
        assert steps.ran == ["done", "undo done"]
        reference = await chancy.push(other)
        with pytest.raises(WorkflowFailed, match="go has failed: SignalTimeout: no signal"):
            await reference.result(10)
        step = present(await reference.step("go"))
        assert step.error == {
            "type": "chancy.SignalTimeout",
            "message": "no signal came within 0.1 s",
        }
        # After a retry it waits anew.
        ask(flows_dsn, "update chancy.workflows_steps set delay_s = 60 where name = 'go'")
        assert await reference.retry() == 1
        assert ask(flows_dsn, TIMERS) == [("go", 2)]
        await reference.signal("go", 1)
        assert await reference.result(10) == "end"


async def test_a_timeout_may_cancel_the_workflow(flows_dsn: str) -> None:
    flows = Workflows(sweep_s=0.1)
    flow = Workflow("w").add(steps.held.job(), "slow")
    flow.wait_for("go", timeout_s=0.1, on_timeout="cancel")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        with pytest.raises(JobCancelled, match="step go: no signal came within"):
            await reference.result(10)

        async def stopped() -> bool:
            return {one.state for one in await reference.steps()} == {StepState.CANCELLED}

        await eventually(stopped)


async def test_waits_survive_restarts_and_count_from_their_beginning(flows_dsn: str) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        flow = Workflow("w").wait_for("go", timeout_s=3600, default="nobody")
        flow.wait_for("later", after="go", timeout_s=3600, default="none")
        id = (await chancy.push(flow)).id
        assert ask(flows_dsn, TIMERS) == [("go", 1)]
        assert await SignalTimeouts(chancy.broker).turn() == 0
    ask(flows_dsn, DUE)
    async with working(flows_dsn, Workflows(sweep_s=0.1)) as chancy:
        reference = Workflows().reference(chancy, id)
        await eventually(lambda: begun(reference, "later"))
        await eventually(lambda: ask(flows_dsn, TIMERS) == [("later", 1)])
        await reference.signal("later", "somebody")
        assert await reference.result(10) == "somebody"


async def test_the_signal_and_the_timer_count_once(flows_dsn: str) -> None:
    flows = Workflows(sweep_s=0.1)
    flow = Workflow("w").wait_for("go", timeout_s=3600, default="nobody")
    flow.add(steps.anything.job(From("go")), "end")
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        reference = await chancy.push(flow)
        ask(flows_dsn, DUE)
        assert await reference.signal("go", "somebody")
        assert await SignalTimeouts(chancy.broker).turn() == 1
        assert await SignalTimeouts(chancy.broker).turn() == 0
    async with working(flows_dsn, flows) as chancy:
        assert await flows.reference(chancy, reference.id).result(10) == "somebody"


async def test_a_wait_restarts_when_a_failed_workflow_continues(flows_dsn: str) -> None:
    flows = Workflows(sweep_s=0.1)
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.once.job(), "bad")
    flow.wait_for("go", timeout_s=3600, default="nobody")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED
        ask(flows_dsn, DUE)
        await eventually(lambda: ask(flows_dsn, TIMERS) == [])
        found = present(await reference.step("go"))
        assert found.state is StepState.WAITING
        steps.failing.clear()
        assert await reference.retry() == 1
        assert ask(flows_dsn, TIMERS) == [("go", 1)]
        await reference.signal("go", "somebody")
        assert await reference.result(10) == {"bad": "bad", "go": "somebody"}


async def test_a_timer_that_was_due_while_its_workflow_had_failed_restarts(
    flows_dsn: str,
) -> None:
    flows = Workflows()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.once.job(), "bad").wait_for("go", timeout_s=3600)
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        store = SQL.on(chancy.broker)
        ask(flows_dsn, DUE)
        # As the leader does while the workflow is retried.
        (due,) = await store.fetch("due", 10)
        assert not due[-1]
        assert await flows.reference(chancy, reference.id).retry() == 1
        await store.fetch("rung", *([one] for one in due[:3]))
        assert ask(flows_dsn, TIMERS) == [("go", 1)]
        assert await SignalTimeouts(chancy.broker).turn() == 0


class Late(SignalTimeouts):
    """Pauses between reading due timers and handling them."""

    def __init__(
        self, chancy: Chancy, meanwhile: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        super().__init__(chancy.broker)
        self._meanwhile = meanwhile

    async def _time_out(self, due: Sequence[SignalTimeout]) -> None:
        await self._meanwhile()
        await super()._time_out(due)


@pytest.mark.parametrize("locked", [False, True])
async def test_a_timer_is_never_taken_from_a_step_that_waits_again(
    flows_dsn: str, locked: bool
) -> None:
    """Also if the timer has started anew and is due again by then, or starts anew in a transaction
    that is not committed yet."""
    flows = Workflows()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.once.job(), "bad").wait_for("go", timeout_s=3600, default=1)
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        reference = flows.reference(chancy, reference.id)
        ask(flows_dsn, DUE)

        async def retried() -> None:
            assert await reference.retry() == 1
            ask(flows_dsn, DUE)

        with psycopg.connect(flows_dsn) as connection:
            if locked:  # as a retry does
                connection.execute("select from chancy.workflows for no key update")
                assert await SignalTimeouts(chancy.broker).turn() == 0
            else:
                assert await Late(chancy, retried).turn() == 1
        assert ask(flows_dsn, TIMERS) == [("go", 1)]
        assert await SignalTimeouts(chancy.broker).turn() == 1
        assert ask(flows_dsn, TIMERS) == []
        go = present(await reference.step("go"))
        assert go.state is (StepState.WAITING if locked else StepState.SUCCEEDED)


@pytest.mark.parametrize("given", [{"default": 1}, {"on_timeout": "cancel"}, {}])
async def test_timers_of_a_locked_workflow_hold_up_no_others(
    flows_dsn: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugins.workflow.timers.BATCH", 1)
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        held, free = [
            await chancy.push(Workflow("w").wait_for("go", timeout_s=3600, **given))
            for _ in range(2)
        ]
        for one in (held, free):
            ask(flows_dsn, f"{DUE} where workflow_id = %s", [one.id])
        timers = SignalTimeouts(chancy.broker)
        async with await psycopg.AsyncConnection.connect(flows_dsn) as other:
            await other.execute(LOCK, [held.id])
            assert await asyncio.wait_for(timers.turn(), 8) == 1
            assert present(await free.get()).state.final
            assert await is_in(held, WorkflowState.RUNNING)
        assert await timers.turn() == 1
        assert present(await held.get()).state.final
        assert ask(flows_dsn, TIMERS) == []


async def test_a_cancellation_that_the_server_refuses_stops_no_other_timer(flows_dsn: str) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        refused, free = [
            await chancy.push(Workflow("w").wait_for("go", timeout_s=3600, on_timeout="cancel"))
            for _ in range(2)
        ]
        ask(flows_dsn, DUE)
        ask(flows_dsn, REFUSE.format(refused.id))
        assert await SignalTimeouts(chancy.broker).turn() == 2
        assert await is_in(free, WorkflowState.CANCELLED)
        assert await is_in(refused, WorkflowState.RUNNING)
        ask(flows_dsn, "drop trigger refuse on chancy.workflows")
        assert await SignalTimeouts(chancy.broker).turn() == 1
        assert await is_in(refused, WorkflowState.CANCELLED)


async def test_a_signal_that_comes_as_the_time_is_up_keeps_its_workflow(flows_dsn: str) -> None:
    flows = Workflows()
    flow = Workflow("w").wait_for("go", timeout_s=3600, on_timeout="cancel").wait_for("never")
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        reference = await chancy.push(flow)
        ask(flows_dsn, DUE)
        assert await Late(chancy, lambda: reference.signal("go", 1)).turn() == 1
        assert await states(reference) == {"go": "succeeded", "never": "awaiting signal"}
        assert await is_in(reference, WorkflowState.RUNNING)


async def test_included_and_added_waits_have_their_timers(flows_dsn: str) -> None:
    flows = Workflows(sweep_s=0.1)
    inner = Workflow("inner").wait_for("go", timeout_s=0.1, default=7)
    flow = Workflow("w").include(inner).add(steps.double.job(From("inner")), "end")
    async with working(flows_dsn, flows) as chancy:
        assert await (await chancy.push(flow)).result(10) == 14


@pytest.mark.parametrize(
    "given",
    [
        {"timeout_s": 0}, {"timeout_s": -1}, {"timeout_s": float("nan")}, {"timeout_s": True},
        {"timeout_s": "1"}, {"timeout_s": 1e12}, {"default": 1}, {"on_timeout": "cancel"},
        {"timeout_s": 1, "on_timeout": "ignore"}, {"timeout_s": 1, "default": object()},
        {"timeout_s": 1, "default": 1, "on_timeout": "cancel"}, {"on_failure": "x"},
    ],
)  # fmt: skip
def test_waits_that_cannot_be(given: dict[str, Any]) -> None:
    with pytest.raises(PushError, match="go"):
        Workflow("w").wait_for("go", **given)


def test_a_wait_may_be_ignored() -> None:
    (step,) = Workflow("w").wait_for("go", timeout_s=1, on_failure="ignore")
    assert step.on_failure is OnFailure.IGNORE

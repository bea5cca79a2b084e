"""Steps that the server refuses to push, after ones that have succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.batch import Batches, BatchFilter
from chancy.plugins.workflow import (
    From,
    StepState,
    Workflow,
    WorkflowFilter,
    WorkflowReference,
    Workflows,
    WorkflowState,
)
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import SQL, StepRef, lost_outcome
from chancy.plugins.workflow.starts import start_pieces
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import LOCK, REFUSE, Unreporting, states, sweep_of, working
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually


@pytest.mark.parametrize(
    ("policy", "state", "ended"),
    [
        ("fail", WorkflowState.FAILED, {"refused": "failed", "beside": "succeeded"}),
        ("ignore", WorkflowState.SUCCEEDED, {"refused": "ignored", "last": "succeeded"}),
        ("compensate", WorkflowState.COMPENSATED, {"refused": "failed", "undo first": "succeeded"}),
    ],
)
async def test_a_step_that_cannot_be_pushed_fails_by_its_own_policy(
    flows_dsn: str,
    policy: Literal["fail", "ignore", "compensate"],
    state: WorkflowState,
    ended: Mapping[str, str],
) -> None:
    flows = Workflows(sweep_s=0.1)
    flow = Workflow("w").add(steps.once.job(), "first", undo=steps.undo.job(From("first")))
    flow.add(steps.once.job(), "beside", after="first")
    flow.add(steps.once.job(), "refused", after="first", on_failure=policy)
    flow.add(steps.once.job(), "last", after="refused")
    ask(flows_dsn, REFUSE)
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(20) is state
        found = await states(reference)
        assert found["first"] == "succeeded"
        assert found.items() >= ended.items()
        refused = present(await reference.step("refused"))
        assert refused.error is not None
        assert "not this one" in refused.error["message"]
    assert steps.ran.count("first") == 1


def saga(first: str) -> Workflow:
    flow = Workflow("w").add(steps.once.job(), first, undo=steps.undo.job(From(first)))
    return flow.add(steps.once.job(), "bad", after=first, on_failure="compensate")


async def fails_for_good(reference: WorkflowReference) -> None:
    """The refusal is shown, and a retry continues."""
    found = present(await reference.get())
    assert found.state is WorkflowState.FAILED
    refused = present(await reference.step("undo kept"))
    assert refused.state is StepState.FAILED
    assert refused.error is not None
    assert "not this one" in refused.error["message"]


async def test_a_step_that_undoes_and_cannot_be_pushed_fails(flows_dsn: str) -> None:
    flows = Workflows(sweep_s=0.1)
    steps.failing.add("bad")
    ask(flows_dsn, REFUSE)
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(saga("kept"))
        assert await reference.wait(20) is WorkflowState.FAILED
        await fails_for_good(reference)
        await asyncio.to_thread(ask, flows_dsn, "drop trigger refuse on chancy.jobs")
        assert await reference.retry() == 1
        assert await reference.wait(20) is WorkflowState.COMPENSATED
    assert steps.ran[-1] == "undo kept"


async def test_a_workflow_that_cannot_be_undone_holds_up_no_other(flows_dsn: str) -> None:
    """The sweep starts the undoing of a page of workflows where no settlement could."""
    flows = Workflows()
    steps.failing |= {"kept", "done"}
    async with working(flows_dsn, flows) as chancy:
        both = [await chancy.push(saga(name)) for name in ("kept", "done")]
        for one in both:
            assert await one.wait(10) is WorkflowState.FAILED
    await asyncio.to_thread(ask, flows_dsn, REFUSE)
    ended = "update chancy.workflows_steps set state = 4 where name in ('kept', 'done')"
    ask(flows_dsn, ended)
    ask(flows_dsn, "update chancy.workflows set state = 2, finished_at = null")
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        kept, done = (flows.reference(chancy, one.id) for one in both)
        await sweep_of(chancy).turn()
        assert (await states(done))["undo done"] == "pending"
        await fails_for_good(kept)


async def test_a_released_step_that_cannot_be_pushed_fails(flows_dsn: str) -> None:
    """Each on its own, although the server refuses two in a row."""
    ask(flows_dsn, REFUSE)
    flow = Workflow("w").add(steps.mark.job(), "first")
    flow.add(steps.once.job(), "refused", after="first", on_failure="ignore")
    flow.add(steps.once.job(), "then", after="refused", on_failure="ignore")
    flow.add(steps.mark.job(), "last", after="then")
    async with working(flows_dsn, Unreporting()) as chancy:
        reference = await chancy.push(flow)
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        assert await sweep_of(chancy).turn() == 1
        found = await states(reference)
        assert (found["refused"], found["then"]) == ("ignored", "ignored")
        await eventually(lambda: steps.ran[-1] == "last")


async def test_a_lost_step_releases_the_steps_that_can_be_pushed(flows_dsn: str) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        flow = Workflow("w").add(steps.once.job(), "gone", on_failure="ignore")
        for name in ("refused", "taken"):
            flow.add(steps.once.job(), name, after="gone", on_failure="ignore")
        reference = await chancy.push(flow)
        step = present(await reference.step("gone"))
        assert step.job_id is not None
        ask(flows_dsn, "delete from chancy.jobs where id = %s", [step.job_id])
        await asyncio.to_thread(ask, flows_dsn, REFUSE)
        loss = lost_outcome(StepRef(reference.id, "gone", 1, False), step.job_id)
        assert await WorkflowCalls(chancy.broker).lose([loss]) == 1
        found = {"gone": "ignored", "refused": "ignored", "taken": "pending"}
        assert await states(reference) == found


@pytest.mark.parametrize("within", [False, True])
async def test_a_step_behind_a_signal_that_cannot_be_pushed_fails_by_itself(
    flows_dsn: str, within: bool
) -> None:
    """The sender of the signal is not affected."""
    flows = Workflows(sweep_s=0.1)
    flow = Workflow("w").wait_for("go").add(steps.once.job(), "beside", after="go")
    flow.add(steps.once.job(), "refused", after="go", on_failure="ignore")
    ask(flows_dsn, REFUSE)
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        if within:
            async with chancy.transaction() as transaction:
                assert await reference.signal("go", 1, within=transaction)
        else:
            assert await reference.signal("go", 1)
        assert not await reference.signal("go", 2)
        assert await reference.wait(20) is WorkflowState.SUCCEEDED
        found = {"go": "succeeded", "beside": "succeeded", "refused": "ignored"}
        assert await states(reference) == found


async def test_refused_pieces_of_a_locked_workflow_hold_up_no_others(flows_dsn: str) -> None:
    ask(flows_dsn, REFUSE)
    both: list[WorkflowReference] = []
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        for _ in range(2):
            flow = Workflow("w").wait_for("go").add(steps.once.job(), "refused", after="go")
            both.append(await chancy.push(flow))
            assert await both[-1].signal("go")
        held, free = both
        async with await psycopg.AsyncConnection.connect(flows_dsn) as other:
            await other.execute(LOCK, [held.id])
            await asyncio.wait_for(start_pieces(SQL.on(chancy.broker)), 8)
            assert await free.wait(5) is WorkflowState.FAILED
        await start_pieces(SQL.on(chancy.broker))
        assert await held.wait(5) is WorkflowState.FAILED


async def test_an_end_that_is_refused_and_what_it_lets_go_are_two_failures(flows_dsn: str) -> None:
    async with working(flows_dsn, Unreporting()) as chancy:
        flow = Workflow("w").add(steps.once.job(), "first", on_failure="ignore")
        flow.add(steps.once.job(), "refused", after="first", on_failure="ignore")
        reference = await chancy.push(flow)
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        await asyncio.to_thread(ask, flows_dsn, REFUSE)
        ask(
            flows_dsn,
            "create trigger refuse before update on chancy.workflows_steps for each row "
            "when (new.name = 'first' and new.state = 4) execute function chancy.refuse()",
        )
        assert await sweep_of(chancy).turn() == 1
        assert await states(reference) == {"first": "ignored", "refused": "ignored"}
        assert await reference.wait(5) is WorkflowState.SUCCEEDED


async def test_an_id_that_is_text_is_refused(flows_dsn: str, batches_dsn: str) -> None:
    text = "0198c5d2-7a54-7cc3-9d0c-0e8a5b8f8a11"
    flows, batches = Workflows(), Batches()
    async with Chancy(flows_dsn, plugins=[flows, batches]) as chancy:
        what = "the id of a workflow must be a uuid.UUID"
        with pytest.raises(TypeError, match=what):
            flows.reference(chancy, text)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=what):
            await flows.find(chancy, WorkflowFilter(ids=[text]))  # type: ignore[list-item]
        what = "the id of a batch must be a uuid.UUID"
        with pytest.raises(TypeError, match=what):
            batches.reference(chancy, text)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=what):
            await batches.find(chancy, BatchFilter(ids=[text]))  # type: ignore[list-item]

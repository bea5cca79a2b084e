"""Steps that a running step adds to its workflow."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from chancy import Chancy, JobError, LeaseLost, PushError, current_job, job
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.workflow import Each, From, Workflow, Workflows, WorkflowState
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import is_in, working
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

FLOWS = Workflows()
#: The application of the test, as a module of jobs would have one.
app: list[Chancy] = []
#: The number of failures left.
fails: list[None] = []
refused: list[Exception] = []


@job(queue="async", max_attempts=3)
async def find(count: int) -> int:
    more = Workflow("more")
    for number in range(count):
        more.add(steps.double.job(number), f"page {number}")
    await FLOWS.extend(app[0], more, before=["collect"])
    steps.ran.append("find")
    if fails:
        fails.pop()
        raise ValueError("once more")
    return count


@job(queue="async", max_attempts=3)
async def add(options: dict[str, Any]) -> str:
    """Adds one step, and keeps the error."""
    more = Workflow("more").add(
        steps.anything.job(From()) if options.get("uses") else steps.mark.job(),
        options.get("name", "added"),
        after=options.get("after", ()),
    )
    before = options.get("before", ())
    try:
        if options.get("blocking"):
            with psycopg.connect(app[0].dsn) as connection:
                FLOWS.sync_extend(app[0], more, within=connection, before=before)
        else:
            await FLOWS.extend(app[0], more, before=before)
    except (PushError, JobError) as error:
        refused.append(error)
        raise
    return "added"


@pytest.fixture(autouse=True)
def nothing_refused() -> None:
    app.clear()
    fails.clear()
    refused.clear()


def collecting(count: int) -> Workflow:
    flow = Workflow("dynamic").add(find.job(count), "find")
    return flow.add(steps.total.job(Each(prefix="page ", dynamic=True)), "collect", after="find")


async def test_a_step_fans_out_over_what_it_finds(flows_dsn: str) -> None:
    """Once, although two of its attempts fail after they have added steps."""
    fails.extend([None] * 2)
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        reference = await chancy.push(collecting(20))
        assert await reference.result(10) == 2 * sum(range(20))
        found = {one.name: one for one in await reference.steps()}
    assert len(found) == 22
    assert found["page 3"].added_by == "find"
    assert found["page 3"].next == ("collect",)
    assert steps.ran == ["find"] * 3


async def test_the_last_step_may_add_more_steps(flows_dsn: str) -> None:
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        flow = Workflow("w").add(add.job({"uses": True}), "first")
        assert await (await chancy.push(flow)).result(10) == "added"
        flow = Workflow("w").add(add.job({"blocking": True}), "first")
        assert await (await chancy.push(flow)).result(10) == "added"


@job(queue="async")
async def add_line() -> None:
    """Adds a part, whose name stands for its last step, before a step that is named twice."""
    line = (
        Workflow("line").add(steps.number.job(2), "one").add(steps.double.job(From("one")), "two")
    )
    more = Workflow("more").include(line).add(steps.double.job(From("line")), "again")
    more.add(steps.total.job(Each("line", "again")), "sum").add(steps.held.job(), "slow")
    await FLOWS.extend(app[0], more, before=["end", "end"])


async def test_added_steps_may_be_composed_of_parts(flows_dsn: str) -> None:
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        flow = (
            Workflow("w").add(add_line.job(), "first").add(steps.mark.job(), "end", after="first")
        )
        reference = await chancy.push(flow)

        async def added() -> bool:
            found = {one.name: one for one in await reference.steps()}
            return "sum" in found and found["sum"].result == 12

        await eventually(added)
        assert "end" not in steps.ran
        steps.gate.set()
        assert await reference.result(10) == "end"


@job(queue="async")
async def add_undoing() -> None:
    """Adds a step whose undo takes the result of a part by the name of the part."""
    line = (
        Workflow("line").add(steps.number.job(3), "one").add(steps.double.job(From()), after="one")
    )
    more = Workflow("more").include(line)
    more.add(steps.mark.job(), "kept", after="line", undo=steps.number.job(From("line")))
    await FLOWS.extend(app[0], more, before=["end"])


async def test_the_undo_of_an_added_step_may_name_a_part(flows_dsn: str) -> None:
    steps.failing.add("end")
    flow = Workflow("w").add(add_undoing.job(), "first")
    flow.add(steps.once.job(), "end", after="first", on_failure="compensate")
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.COMPENSATED
        assert present(await reference.step("undo kept")).result == 6


async def test_steps_are_added_behind_ones_that_have_ended(flows_dsn: str) -> None:
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        flow = Workflow("w").add(steps.number.job(1), "one").add(steps.number.job(2), "two")
        flow.add(add.job({"after": ["one", "two"]}), "first", after=["one", "two"])
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.SUCCEEDED
        assert "added" in steps.ran


async def test_a_retried_step_runs_again_before_steps_added_after_its_end(flows_dsn: str) -> None:
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        flow = Workflow("w").add(steps.mark.job(), "one").add(steps.mark.job(), "two")
        options = {"after": ["one", "two"]}
        flow.add(add.job(options), "adds", after=["one", "two"])
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.SUCCEEDED
        found = {one.name: one for one in await reference.steps()}
        assert found["one"].next == ("adds", "added")
        steps.ran.clear()
        assert await reference.retry("one") == 3
        assert await reference.wait(10) is WorkflowState.SUCCEEDED
        assert steps.ran == ["one", "added"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"name": "other"}, "has a step 'other'"),
        ({"before": ["gone"]}, "no step 'gone' that could wait"),
        ({"after": ["gone"]}, "waits for 'gone'"),
        ({"before": ["other"]}, "has started already"),
        ({"before": ["behind"], "after": ["last"]}, "would wait for steps that wait for them"),
        ({"before": ["first"], "after": ["other"]}, "started already"),
    ],
)
async def test_invalid_additions_are_refused(
    flows_dsn: str, options: dict[str, Any], why: str
) -> None:
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        first = add.job(options).with_max_attempts(1)
        flow = Workflow("w").add(steps.mark.job(), "other").add(first, "first", after="other")
        flow.add(steps.mark.job(), "behind", after="first")
        flow.add(steps.mark.job(), "last", after="behind")
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED
    assert why in str(refused[0])
    assert ask(flows_dsn, "select count(*) from chancy.workflows_steps") == [(4,)]


async def test_jobs_that_are_no_steps_add_nothing(flows_dsn: str) -> None:
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        done = await (await chancy.push(add.job({}).with_max_attempts(1))).wait(10)
        assert "is not a step of a workflow" in done.errors[-1]["message"]


zombie = asyncio.Event()


@job(queue="async", max_attempts=1)
async def linger() -> None:
    """Adds a step when its lease is gone."""
    steps.ran.append("linger")
    await zombie.wait()
    context = current_job()
    try:
        await FLOWS.extend(app[0], Workflow("more").add(steps.mark.job(), "late"))
    except LeaseLost as error:
        refused.append(error)
    steps.ran.append(f"attempt {context.attempt} ended")


async def test_an_attempt_that_does_not_count_any_more_adds_nothing(flows_dsn: str) -> None:
    zombie.clear()
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        reference = await chancy.push(Workflow("w").add(linger.job(), "linger"))
        await eventually(lambda: steps.ran == ["linger"])
        # As if another worker had claimed the job.
        ask(flows_dsn, "update chancy.jobs set lease = %s", [uuid4()])
        zombie.set()
        await eventually(lambda: steps.ran == ["linger", "attempt 1 ended"])
        assert "another worker has it" in str(refused[0])
        assert [one.name for one in await reference.steps()] == ["linger"]


@job(queue="async", max_attempts=1)
async def add_late() -> None:
    """Adds a step when the gate opens."""
    steps.ran.append("late")
    await steps.gate.wait()
    try:
        await FLOWS.extend(app[0], Workflow("more").add(steps.mark.job(), "added"))
    except PushError as error:
        refused.append(error)
        raise


async def test_a_failing_workflow_takes_no_more_steps_until_it_is_retried(flows_dsn: str) -> None:
    steps.failing.add("bad")
    flow = Workflow("w").add(add_late.job(), "adds").add(steps.once.job(), "bad")
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        reference = await chancy.push(flow)
        await eventually(lambda: "late" in steps.ran)
        await eventually(lambda: is_in(reference, WorkflowState.FAILING))
        steps.gate.set()
        assert await reference.wait(10) is WorkflowState.FAILED
        (error,) = refused
        assert "another step has failed, and no step of the workflow starts" in str(error)
        steps.failing.clear()
        assert await reference.retry() == 2
        assert await reference.result(10) == {"bad": "bad", "added": "added"}


@job(queue="async", max_attempts=1)
async def add_when_well() -> None:
    if steps.failing:
        raise ValueError("not yet")
    try:
        await FLOWS.extend(app[0], Workflow("more").add(steps.mark.job(), "added"))
    except PushError as error:
        refused.append(error)
        raise


async def test_a_replay_adds_nothing_and_a_retry_does(flows_dsn: str) -> None:
    letters = DeadLetters()
    steps.failing.add("first")
    async with working(flows_dsn, FLOWS, letters) as chancy:
        app.append(chancy)
        reference = await chancy.push(Workflow("w").add(add_when_well.job(), "first"))
        assert await reference.wait(10) is WorkflowState.FAILED
        steps.failing.clear()
        assert await letters.replay(
            chancy, present(await reference.step("first")).job_id or uuid4()
        )
        await eventually(lambda: refused)
        assert "the replay of a dead letter: retry the workflow" in str(refused[0])
        assert await reference.retry() == 1
        assert await reference.wait(10) is WorkflowState.SUCCEEDED
        assert steps.ran == ["added"]

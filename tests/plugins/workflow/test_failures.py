"""Workflows with failed steps: policies, compensation, cancellation, retries, replays."""

from __future__ import annotations

from uuid import UUID

import pytest

from chancy import Chancy, JobCancelled, PushError, Queue, WaitTimeout
from chancy.broker.optional import SqlStore
from chancy.job.ids import new_id
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.workflow import (
    Each,
    From,
    StepState,
    Workflow,
    WorkflowFailed,
    Workflows,
    WorkflowState,
    chain,
)
from chancy.plugins.workflow.outcomes import StepOutcome, StepRef, advance_statement
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import Unreporting, is_in, states, stopped, sweep_of, working
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually


async def test_a_failed_step_fails_the_workflow_and_nothing_else_begins(flows_dsn: str) -> None:
    flows = Workflows()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.once.job(), "bad").add(steps.held.job(), "slow")
    flow.add(steps.mark.job(), "after bad", after="bad")
    flow.add(steps.mark.job(), "after slow", after="slow")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        # The final state is not decided while a step runs.
        await eventually(lambda: is_in(reference, WorkflowState.FAILING))
        with pytest.raises(WaitTimeout, match="is failing"):
            await reference.wait(0.1)
        steps.gate.set()
        with pytest.raises(WorkflowFailed, match="bad has failed: ValueError: bad fails") as caught:
            await reference.result(10)
        assert caught.value.state is WorkflowState.FAILED
        assert await states(reference) == {
            "bad": "failed",
            "slow": "succeeded",
            "after bad": "waiting",
            "after slow": "waiting",
        }
        bad = present(await reference.step("bad"))
        assert bad.error == {"type": "builtins.ValueError", "message": "bad fails"}
        # After a retry it continues, also after the step that ended meanwhile.
        steps.failing.clear()
        assert await reference.retry() == 1
        assert await reference.result(10) == {"after bad": "after bad", "after slow": "after slow"}
        bad = present(await reference.step("bad"))
        assert (bad.run, bad.error) == (2, None)
    assert sorted(steps.ran) == ["after bad", "after slow", "bad", "bad", "slow"]


async def test_an_ignored_failure_counts_as_done(flows_dsn: str) -> None:
    flows = Workflows()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.once.job(), "bad", on_failure="ignore")
    flow.add(steps.maybe.job(From("bad")), "next")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.result(10) == "None"
        assert await states(reference) == {"bad": "ignored", "next": "succeeded"}


async def test_a_cancelled_workflow_stops_what_runs(flows_dsn: str) -> None:
    flows = Workflows(sweep_s=0.1)
    flow = Workflow("w").add(steps.held.job(), "slow")
    flow.add(steps.mark.job().with_delay(3600), "later")
    flow.add(steps.mark.job(), "after", after=["slow", "later"])
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        await eventually(lambda: "slow" in steps.ran)
        assert await reference.cancel()
        with pytest.raises(JobCancelled):
            await reference.result(10)

        await stopped(flows_dsn, 2)
        assert set((await states(reference)).values()) == {"cancelled"}
        assert ask(flows_dsn, "select id from chancy.jobs") == []
        assert await reference.cancel()
        steps.gate.set()
        assert await reference.retry() == 2
        later = present(await reference.step("later"))
        assert later.job_id is not None
        await chancy.run_now(later.job_id)
        assert await reference.result(10) == "after"
        assert not await reference.cancel()


async def test_steps_stopped_by_a_cancel_are_not_ignored_failures(
    flows_dsn: str,
) -> None:
    flows = Workflows(sweep_s=0.1)
    flow = Workflow("w").add(steps.held.job(), "slow", on_failure="ignore")
    flow.add(steps.mark.job().with_delay(3600), "later", on_failure="ignore")
    flow.add(steps.mark.job(), "after", after=["slow", "later"])
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        await eventually(lambda: "slow" in steps.ran)
        assert await reference.cancel()

        await stopped(flows_dsn, 2)
        assert set((await states(reference)).values()) == {"cancelled"}
        steps.gate.set()
        assert await reference.retry() == 2
        later = present(await reference.step("later"))
        assert later.job_id is not None
        assert await chancy.cancel(later.job_id)
        assert await reference.result(10) == "after"
        # A job that is cancelled by itself counts as failed.
        assert await states(reference) == {
            "slow": "succeeded",
            "later": "ignored",
            "after": "succeeded",
        }
    assert steps.ran == ["slow", "slow", "after"]


async def test_a_retry_waits_until_stopped_steps_are_reported(flows_dsn: str) -> None:
    flows = Unreporting()
    flow = Workflow("w").add(steps.held.job(), "slow", on_failure="ignore")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        await eventually(lambda: "slow" in steps.ran)
        assert await reference.cancel()
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        with pytest.raises(PushError, match="still run"):
            await reference.retry()
        await sweep_of(chancy).turn()
        steps.gate.set()
        assert await reference.retry() == 1
        await eventually(lambda: not ask(flows_dsn, "select id from chancy.jobs"))
        await sweep_of(chancy).turn()
        assert await reference.result(10) == "slow"


async def test_a_job_of_a_step_that_is_cancelled_fails_the_workflow(flows_dsn: str) -> None:
    flows = Workflows(sweep_s=0.1)
    flow = chain("w", steps.mark.job().with_delay(3600), steps.mark.job())
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        first = present(await reference.step("mark"))
        assert first.job_id is not None
        await chancy.cancel(first.job_id)
        assert await reference.wait(10) is WorkflowState.FAILED
        assert (await states(reference))["mark"] == "cancelled"


async def test_a_step_and_all_behind_it_run_again(flows_dsn: str) -> None:
    flows = Workflows()
    flow = Workflow("w").add(steps.mark.job(), "a").add(steps.mark.job(), "b", after="a")
    flow.add(steps.mark.job(), "side", after="a")
    flow.add(steps.mark.job(), "join", after=["b", "side"])
    flow.add(steps.anything.job(Each("join")), "end")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        await reference.result(10)
        with pytest.raises(PushError, match="is succeeded, and cannot be retried"):
            await reference.retry()
        with pytest.raises(PushError, match="with a step 'x'"):
            await reference.retry("x")
        steps.ran.clear()
        assert await reference.retry("b") == 3
        assert await reference.result(10) == ["join"]
        assert steps.ran == ["b", "join"]
        assert {one.name: one.run for one in await reference.steps()} == {
            "a": 1, "b": 2, "side": 1, "join": 2, "end": 2,
        }  # fmt: skip


async def test_what_undoes_a_step_is_no_step_to_retry(flows_dsn: str) -> None:
    flow = Workflow("w").add(steps.mark.job(), "a", undo=steps.undo.job("a"))
    async with working(flows_dsn, Workflows()) as chancy:
        reference = await chancy.push(flow)
        assert await reference.result(10) == "a"
        with pytest.raises(PushError, match="with a step 'undo a'"):
            await reference.retry("undo a")
        assert present(await reference.step("undo a")).run == 1


async def test_the_replay_of_a_dead_letter_resumes_its_workflow(flows_dsn: str) -> None:
    flows, dead = Workflows(), DeadLetters()
    steps.failing |= {"bad", "worse"}
    flow = Workflow("w").add(steps.once.job(), "bad").add(steps.once.job(), "worse")
    flow.add(steps.mark.job(), "after bad", after="bad")
    flow.add(steps.mark.job(), "end", after=["after bad", "worse"])
    async with working(flows_dsn, flows, dead) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED

        async def both() -> bool:
            return list((await states(reference)).values()).count("failed") == 2

        await eventually(both)
        steps.failing.clear()
        replayed = {one.id: await dead.replay(chancy, one.id) for one in await dead.find(chancy)}
        assert len(replayed) == 2

        async def resumed() -> bool:
            found = await reference.get()
            return found is not None and found.state is WorkflowState.SUCCEEDED

        await eventually(resumed)
        assert await reference.result(10) == "end"
        bad = present(await reference.step("bad"))
        assert bad.state is StepState.SUCCEEDED
        assert bad.job_id in replayed.values()
    assert sorted(steps.ran) == ["after bad", "bad", "bad", "end", "worse", "worse"]


@pytest.mark.parametrize("succeeds", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
async def test_a_success_counts_among_replays_that_end_at_the_same_time(
    flows_dsn: str, succeeds: int, reverse: bool
) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        reference = await chancy.push(Workflow("w").add(steps.mark.job(), "bad"))
        first = present((await reference.steps())[0].job_id)
        failure = '{"type": "builtins.ValueError", "message": "no"}'

        def end(job: UUID, again: bool, good: bool) -> StepOutcome:
            ref = StepRef(reference.id, "bad", 1, again)
            if good:
                return StepOutcome(ref, job, 4, '"done"', None, 1.0)
            return StepOutcome(ref, job, 5, None, failure, 1.0)

        async def store(*outcomes: StepOutcome) -> None:
            sql, *parameters = advance_statement("chancy", outcomes)
            assert isinstance(chancy.control, SqlStore)
            await chancy.control.fetch(sql, *parameters)

        await store(end(first, False, False))
        assert await states(reference) == {"bad": "failed"}
        replays = [new_id(), new_id()]
        ends = [end(job, True, at == succeeds) for at, job in enumerate(replays)]
        await store(*(reversed(ends) if reverse else ends))
        bad = present(await reference.step("bad"))
        assert (bad.state, bad.job_id) == (StepState.SUCCEEDED, replays[succeeds])
        assert await reference.wait(5) is WorkflowState.SUCCEEDED


async def test_a_replay_of_a_step_that_was_retried_is_ignored(flows_dsn: str) -> None:
    flows, dead = Workflows(), DeadLetters()
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.once.job(), "bad").add(steps.mark.job(), "end", after="bad")
    async with working(flows_dsn, flows, dead) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.FAILED
        steps.failing.clear()
        # The retried job waits, and the replay ends first.
        ask(flows_dsn, "update chancy.workflows_steps set delay_s = 3600 where name = 'bad'")
        assert await reference.retry() == 1
        (letter,) = await dead.find(chancy)
        id = present(await dead.replay(chancy, letter.id))
        await chancy.wait_for(id, 10)
        assert (await states(reference))["bad"] == "scheduled"
        assert "end" not in steps.ran


async def test_a_step_that_was_asked_to_stop_and_should_go_back_ends(flows_dsn: str) -> None:
    """The attempt fails before the request to stop arrives. A queue without history keeps no trace
    of such a job."""
    flows = Workflows(sweep_s=3600)
    brief = Queue(name="async", executor="async", keep_finished=False)
    steps.failing.add("bad")
    flow = Workflow("w").add(steps.late.job().with_max_attempts(2), "bad")
    async with working(flows_dsn, flows, queue=brief) as chancy:
        reference = await chancy.push(flow.add(steps.mark.job(), "end", after="bad"))
        await eventually(lambda: "bad" in steps.ran)
        ask(flows_dsn, "update chancy.jobs set stop_asked_at = now()")
        steps.gate.set()
        assert await reference.wait(10) is WorkflowState.FAILED
        bad = present(await reference.step("bad"))
        assert bad.state is StepState.CANCELLED
        assert bad.error == {"type": "builtins.ValueError", "message": "bad fails"}
        steps.failing.clear()
        assert await reference.retry() == 1
        assert await reference.result(10) == "end"
        bad = present(await reference.step("bad"))
        assert bad.run == 2

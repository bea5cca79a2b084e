"""Workflows some of whose steps are in queues of Redis."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from chancy import Chancy, PushError, State, Worker, job
from chancy.plugin.tracking import GONE_S
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.workflow import (
    Each,
    From,
    StepState,
    Workflow,
    Workflows,
    WorkflowState,
)
from chancy.testing.clock import ManualClock
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import execute, stopped
from tests.plugins.workflow.two_stores import (
    Deaf,
    act,
    application,
    fast,
    state_there,
    states,
    sweep_of,
    working,
)
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

LONG = pytest.mark.chaos

APPS: list[Chancy] = []


def mixed() -> Workflow:
    flow = Workflow("mixed").add(steps.number.job(1), "one")
    flow.add(fast(steps.double.job(From("one"))), "two")
    fours = [f"four {n}" for n in range(5)]
    for n, name in enumerate(fours):
        flow.add(fast(steps.double.job(From("two")), ("async", "fast")[n % 2]), name)
    return flow.add(fast(steps.total.job(Each(*fours)), "brief"), "sum")


async def test_steps_of_both_brokers_pass_on_what_they_give(dsn: str, redis_url: str) -> None:
    flows = Workflows()
    async with working(dsn, redis_url, flows) as chancy:
        reference = await flows.push(chancy, mixed())
        assert await reference.result(10) == 20
        assert set((await states(reference)).values()) == {"succeeded"}
        for name in ("two", "four 1", "four 3", "sum"):
            assert await state_there(chancy, reference, name) is State.SUCCEEDED
        assert await state_there(chancy, reference, "four 2") is None
    assert execute(dsn, "select job_id from chancy.workflows_away") == []


async def test_a_step_in_redis_fails_and_is_undone_and_retried(dsn: str, redis_url: str) -> None:
    flows = Workflows()
    steps.failing |= {"bad"}
    flow = Workflow("w").add(fast(steps.once.job()), "a", undo=fast(steps.undo.job(From("a"))))
    flow.add(fast(steps.once.job()), "bad", after="a", on_failure="compensate")
    async with working(dsn, redis_url, flows) as chancy:
        reference = await flows.push(chancy, flow)
        assert await reference.wait(10) is WorkflowState.COMPENSATED
        assert steps.ran == ["a", "bad", "undo a"]
        bad = await reference.step("bad")
        assert bad is not None
        assert bad.error == {"type": "builtins.ValueError", "message": "bad fails"}
        plain = Workflow("w").add(fast(steps.once.job()), "bad")
        plain.add(steps.mark.job(), "end", after="bad")
        reference = await flows.push(chancy, plain)
        assert await reference.wait(10) is WorkflowState.FAILED
        steps.failing.clear()
        assert await reference.retry() == 1
        assert await reference.result(10) == "end"


@pytest.mark.chaos
async def test_steps_that_go_on_and_on_are_told_at_once(
    dsn: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.worker.meta_writer.EVERY_S", 0.002)
    monkeypatch.setattr("chancy.plugins.redis.jobs.meta.MOST", 3)
    flows = Workflows(sweep_s=3600)
    flow = Workflow("w").add(fast(steps.winding.job(), "fast"), "a")
    flow.add(fast(steps.winding.job(), "brief"), "b", after="a")
    flow.add(steps.text.job(From("b")), "end")
    async with working(dsn, redis_url, flows) as chancy:
        reference = await flows.push(chancy, flow)
        assert await reference.result(5) == "b"
        assert steps.ran == ["a"] * 3 + ["b"] * 3
        for name in ("a", "b"):
            # Somebody else may have to tell it.
            assert await state_there(chancy, reference, name) is State.SUCCEEDED


@pytest.mark.parametrize("queue", ["fast", pytest.param("brief", marks=LONG)])
async def test_the_sweep_tells_what_redis_alone_knows(dsn: str, redis_url: str, queue: str) -> None:
    flows = Deaf()
    steps.failing |= {"bad"}
    flow = Workflow("w").add(fast(steps.double.job(4), queue), "eight")
    flow.add(fast(steps.once.job(), queue), "bad", on_failure="ignore")
    flow.add(fast(steps.total.job(Each("eight")), queue), "sum", after="bad")
    async with working(dsn, redis_url, flows) as chancy:
        reference = await flows.push(chancy, flow)
        sweep = sweep_of(chancy)

        async def ending() -> bool:
            found = await states(reference)
            return found == {"eight": "ending", "bad": "ending", "sum": "waiting"}

        await eventually(ending)
        # Whoever ran them may be about to tell.
        assert await sweep.turn() == 0
        assert await states(reference) == {"eight": "ending", "bad": "ending", "sum": "waiting"}
        told = await sweep.turn()
        assert told == 2

        async def summed() -> bool:
            nonlocal told
            told += await sweep.turn()
            return told == 3

        await eventually(summed)
        assert await sweep.turn() == 0
        assert await reference.result(10) == 8
        assert await states(reference) == {
            "eight": "succeeded",
            "bad": "ignored",
            "sum": "succeeded",
        }
        assert steps.ran == ["bad"]
    assert execute(dsn, "select job_id from chancy.workflows_away") == []


@pytest.mark.chaos
@pytest.mark.parametrize("queue", ["fast", pytest.param("brief", marks=LONG)])
async def test_a_step_counts_once_if_its_worker_is_killed_before_it_tells(
    dsn: str, redis_url: str, tmp_path: Path, queue: str
) -> None:
    flows, book = Workflows(sweep_s=0.2), tmp_path / "book"
    step = fast(act.job(str(book)), queue)
    flow = Workflow("w").add(step, "a").add(fast(act.job(str(book)), "async"), "b", after="a")
    async with application(dsn, redis_url, flows) as chancy:
        reference = await flows.push(chancy, flow)
        program = "import asyncio, sys; from tests.plugins.workflow import two_stores as it; "
        program += "asyncio.run(it.die(*sys.argv[1:]))"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, dsn, redis_url
        )
        assert await process.wait() == -signal.SIGKILL
        assert await states(reference) == {"a": "ending", "b": "waiting"}
        assert await state_there(chancy, reference, "a") is State.SUCCEEDED
        async with Worker(chancy):
            assert await reference.wait(20) is WorkflowState.SUCCEEDED
    assert book.read_text() == "a\nb\n"
    assert execute(dsn, "select job_id from chancy.workflows_away") == []


async def test_a_step_that_redis_has_lost_fails(
    dsn: str, redis_url: str, redis_server: RedisServer
) -> None:
    flows = Deaf()
    async with working(dsn, redis_url, flows) as chancy:
        flow = Workflow("w").add(fast(steps.held.job()), "slow")
        reference = await flows.push(chancy, flow)
        clock = ManualClock()
        sweep = sweep_of(chancy, clock)
        await eventually(lambda: steps.ran == ["slow"])
        assert await states(reference) == {"slow": "running"}
        assert await sweep.turn() == 0
        redis_server.flush()
        assert await sweep.turn() == 0
        clock.advance(GONE_S - 1)
        assert await sweep.turn() == 0, "its worker may be about to tell"
        clock.advance(1)
        assert await sweep.turn() == 1
        assert await reference.wait(10) is WorkflowState.FAILED
        slow = await reference.step("slow")
        assert slow is not None
        assert slow.error is not None
        assert slow.error["type"] == "chancy.JobGone"
        steps.gate.set()


async def test_nothing_is_taken_for_lost_on_its_way(dsn: str, redis_url: str) -> None:
    flows = Workflows()
    async with application(dsn, redis_url, flows) as chancy:
        reference = await flows.push(chancy, Workflow("w").add(fast(steps.mark.job()), "a"))
        assert len(execute(dsn, "select id from chancy.redis_outbox")) == 1
        assert execute(dsn, "select id from chancy.jobs") == []
        assert await sweep_of(chancy).turn() == 0
        assert await states(reference) == {"a": "pending"}
        async with Worker(chancy):
            assert await reference.result(10) == "a"


@pytest.mark.chaos
async def test_what_is_cancelled_on_its_way_never_begins(dsn: str, redis_url: str) -> None:
    flows = Workflows(sweep_s=0.1)
    async with application(dsn, redis_url, flows) as chancy:
        flow = Workflow("w").add(fast(steps.mark.job()), "a").add(fast(steps.mark.job()), "b")
        reference = await flows.push(chancy, flow)
        # A relay has taken this one, and is about to push it.
        taken = "update chancy.redis_outbox set taken_until = now() + interval '2 seconds' "
        execute(dsn, taken + "where pos = (select max(pos) from chancy.redis_outbox)")
        assert await reference.cancel()
        assert len(execute(dsn, "select id from chancy.redis_outbox")) == 1
        assert (await states(reference))["a"] == "cancelled"
        execute(dsn, "update chancy.redis_outbox set run_at = now() + interval '1 hour'")
        async with Worker(chancy):

            async def ended() -> bool:
                return await states(reference) == {"a": "cancelled", "b": "cancelled"}

            await eventually(ended)
        assert steps.ran == []


async def test_a_running_step_is_stopped_when_its_workflow_is_cancelled(
    dsn: str, redis_url: str
) -> None:
    flows = Workflows(sweep_s=0.1)
    async with working(dsn, redis_url, flows) as chancy:
        flow = Workflow("w").add(fast(steps.held.job()), "slow")
        reference = await flows.push(chancy, flow.add(steps.mark.job(), "end", after="slow"))
        await eventually(lambda: steps.ran == ["slow"])
        with pytest.raises(PushError, match="some of these steps still run"):
            await reference.retry("slow")
        assert await reference.cancel()

        await stopped(dsn, 1)
        steps.gate.set()
        assert await reference.retry() == 1
        assert await reference.result(10) == "end"


@job(queue="fast", max_attempts=1)
async def grow() -> None:
    await Workflows().extend(APPS[0], Workflow("more").add(steps.mark.job(), "more"))


async def test_a_step_in_redis_adds_none(dsn: str, redis_url: str) -> None:
    flows = Workflows()
    APPS.clear()
    async with working(dsn, redis_url, flows) as chancy:
        APPS.append(chancy)
        reference = await flows.push(chancy, Workflow("w").add(grow.job(), "grow"))
        assert await reference.wait(10) is WorkflowState.FAILED
        step = await reference.step("grow")
        assert step is not None
        assert step.error is not None
        assert "capability 'settling in a transaction' is needed" in step.error["message"]


async def test_the_replay_of_a_step_in_redis_resumes_its_workflow(dsn: str, redis_url: str) -> None:
    flows, dead = Workflows(), DeadLetters()
    steps.failing.add("bad")
    flow = Workflow("w").add(fast(steps.once.job()), "bad")
    flow.add(fast(steps.mark.job()), "end", after="bad")
    async with working(dsn, redis_url, flows) as chancy:
        reference = await flows.push(chancy, flow)
        assert await reference.wait(10) is WorkflowState.FAILED

        async def filed() -> bool:
            return len(await dead.find(chancy)) == 1

        await eventually(filed)
        steps.failing.clear()
        (letter,) = await dead.find(chancy)
        assert await dead.replay(chancy, letter.id)

        async def resumed() -> bool:
            return set((await states(reference)).values()) == {StepState.SUCCEEDED}

        await eventually(resumed)
        assert await reference.result(10) == "end"
        assert steps.ran == ["bad", "bad", "end"]

"""Workflows with steps in queues in Redis."""

from __future__ import annotations

import pytest

from chancy import Chancy, JobFilter, PushError, job
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.workflow import Each, From, StepState, Workflow, Workflows, WorkflowState
from chancy.routing.router import RoutedBroker
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import states, stopped
from tests.plugins.workflow.two_stores import fast, working
from tests.support.postgres_fixtures import template_with
from tests.support.presence import present
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, template: str) -> str:
    return template_with(pytestconfig, template, RedisPlugin(), Workflows())


APPS: list[Chancy] = []


def mixed() -> Workflow:
    flow = Workflow("mixed").add(steps.number.job(1), "one")
    flow.add(fast(steps.double.job(From("one"))), "two")
    fours = [f"four {n}" for n in range(5)]
    for n, name in enumerate(fours):
        flow.add(fast(steps.double.job(From("two")), ("async", "fast")[n % 2]), name)
    return flow.add(fast(steps.total.job(Each(*fours)), "brief"), "sum")


async def test_steps_of_queues_of_both_brokers_pass_on_what_they_give(
    dsn: str, redis_url: str
) -> None:
    flows = Workflows()
    async with working(dsn, redis_url, flows) as chancy:
        assert isinstance(chancy.broker, RoutedBroker)
        reference = await chancy.push(mixed())
        assert await reference.result(10) == 20
        assert set((await states(reference)).values()) == {"succeeded"}
        found = await chancy.broker.brokers.ready("redis")
        assert await found.find(JobFilter()) == [], "they are settled with their outcome"


async def test_a_step_of_a_redis_queue_fails_and_is_undone_and_retried(
    dsn: str, redis_url: str
) -> None:
    flows = Workflows()
    steps.failing |= {"bad"}
    flow = Workflow("w").add(fast(steps.once.job()), "a", undo=fast(steps.undo.job(From("a"))))
    flow.add(fast(steps.once.job()), "bad", after="a", on_failure="compensate")
    async with working(dsn, redis_url, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.wait(10) is WorkflowState.COMPENSATED
        assert steps.ran == ["a", "bad", "undo a"]
        bad = present(await reference.step("bad"))
        assert bad.error == {"type": "builtins.ValueError", "message": "bad fails"}
        plain = Workflow("w").add(fast(steps.once.job()), "bad")
        plain.add(steps.mark.job(), "end", after="bad")
        reference = await chancy.push(plain)
        assert await reference.wait(10) is WorkflowState.FAILED
        steps.failing.clear()
        assert await reference.retry() == 1
        assert await reference.result(10) == "end"


async def test_a_running_step_is_stopped_when_its_workflow_is_cancelled(
    dsn: str, redis_url: str
) -> None:
    flows = Workflows(sweep_s=0.1)
    async with working(dsn, redis_url, flows) as chancy:
        flow = Workflow("w").add(fast(steps.held.job()), "slow")
        reference = await chancy.push(flow.add(steps.mark.job(), "end", after="slow"))
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


async def test_a_step_of_a_redis_queue_adds_steps(dsn: str, redis_url: str) -> None:
    flows = Workflows()
    APPS.clear()
    async with working(dsn, redis_url, flows) as chancy:
        APPS.append(chancy)
        reference = await chancy.push(Workflow("w").add(grow.job(), "grow"))
        assert await reference.wait(10) is WorkflowState.SUCCEEDED
        assert await states(reference) == {"grow": "succeeded", "more": "succeeded"}


async def test_the_replay_of_a_step_of_a_redis_queue_resumes_its_workflow(
    dsn: str, redis_url: str
) -> None:
    flows, dead = Workflows(), DeadLetters()
    steps.failing.add("bad")
    flow = Workflow("w").add(fast(steps.once.job()), "bad")
    flow.add(fast(steps.mark.job()), "end", after="bad")
    async with working(dsn, redis_url, flows) as chancy:
        reference = await chancy.push(flow)
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

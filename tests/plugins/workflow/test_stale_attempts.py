"""Stale attempts end no step, on every broker."""

from __future__ import annotations

import asyncio

import pytest

from chancy import Settlement, State, current_job, job
from chancy.context.context import JobContext
from chancy.plugins.redis import RedisPlugin
from chancy.plugins.workflow import From, Workflow, Workflows
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import states
from tests.plugins.workflow.two_stores import fast, working
from tests.support.postgres_fixtures import template_with
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def template(pytestconfig: pytest.Config, template: str) -> str:
    return template_with(pytestconfig, template, RedisPlugin(), Workflows())


#: The attempts that began, each with the event that it waits for.
attempts: list[JobContext] = []
gates: list[asyncio.Event] = []


@job(max_attempts=1)
async def linger() -> int:
    """Returns its number once it is allowed to."""
    attempts.append(current_job())
    number = len(attempts)
    await gates[number - 1].wait()
    steps.ran.append(f"attempt {number}")
    return number


@pytest.mark.parametrize("queue", [pytest.param("async", marks=pytest.mark.chaos), "fast"])
async def test_the_attempt_that_counts_ends_its_step(dsn: str, redis_url: str, queue: str) -> None:
    attempts.clear()
    gates[:] = [asyncio.Event(), asyncio.Event()]
    flows = Workflows(sweep_s=0.1)
    flow = Workflow("w").add(fast(linger.job(), queue), "slow")
    flow.add(fast(steps.anything.job(From("slow")), queue), "end")
    async with working(dsn, redis_url, flows) as chancy:
        reference = await chancy.push(flow)
        await eventually(lambda: len(attempts) == 1)
        # As recovery does with the job of a dead worker: it runs again, in the same process.
        first = attempts[0]
        back = Settlement(first.id, first.lease, State.PENDING)
        assert await chancy.broker.settle([back]) == frozenset()
        await eventually(lambda: len(attempts) == 2)
        gates[0].set()
        await eventually(lambda: steps.ran == ["attempt 1"])
        # Two turns of the sweep and the check of recorded attempts find nothing.
        for _ in range(15):
            await asyncio.sleep(0.1)
            assert await states(reference) == {"slow": "running", "end": "waiting"}
        gates[1].set()
        assert await reference.result(10) == 2
        assert steps.ran == ["attempt 1", "attempt 2"]

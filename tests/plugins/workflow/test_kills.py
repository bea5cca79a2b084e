"""Random workflows while workers are killed and frozen: each step ends once, in its order, and
nothing is stuck."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from chancy.plugins.workflow import (
    OnFailure,
    StepRecord,
    StepState,
    Workflow,
    Workflows,
    WorkflowState,
)
from tests.plugins.workflow import run_worker
from tests.plugins.workflow.fleet import Fleet
from tests.plugins.workflow.running import execute

logger = logging.getLogger("tests.plugins.workflow")

FLOWS = Workflows()


@pytest.fixture
def servers(flows_dsn: str, request: pytest.FixtureRequest) -> Sequence[str]:
    """The server of Postgres, and that of Redis for steps in both."""
    if request.param == "postgres":
        return [flows_dsn]
    redis_url: str = request.getfixturevalue("redis_url")

    async def prepare() -> None:
        async with run_worker.application(flows_dsn, redis_url) as chancy:
            await chancy.migrate()
            for queue in chancy.queues:
                await chancy.declare(queue)

    asyncio.run(prepare())
    return [flows_dsn, redis_url]


@pytest.fixture
def fleet(servers: Sequence[str], chance: random.Random) -> Iterator[Fleet]:
    made = Fleet("tests.plugins.workflow.run_worker", servers, 3, chance)
    yield made
    made.stop()


def graph(
    book: Path, chance: random.Random, queues: Sequence[str]
) -> tuple[Workflow, dict[str, tuple[str, ...]]]:
    """A workflow, and whom each step waits for. Failures of it are ignored."""
    flow, before = Workflow("chaos"), dict[str, tuple[str, ...]]()
    for place in range(chance.randint(3, 15)):
        after = tuple(chance.sample(sorted(before), min(len(before), chance.randint(0, 3))))
        fails = chance.random() < 0.1
        step = run_worker.act.job(str(book), fails).with_max_attempts(2 if fails else 50)
        step = step.with_queue(chance.choice(queues))
        policy = OnFailure.IGNORE if fails else OnFailure.FAIL
        flow.add(step, f"n{place}", after=after, on_failure=policy)
        before[f"n{place}"] = after
    return flow, before


def _suspected(step: StepRecord) -> bool:
    """Whether it failed since it was in the hands of three workers that were killed."""
    error = step.error or {"type": "", "message": ""}
    return error["type"] == "chancy.Lost" and error["message"].startswith("crash 3 of 3")


def _in_order(
    book: Path,
    pushed: Mapping[UUID, Mapping[str, tuple[str, ...]]],
    suspected: Collection[tuple[UUID, str]],
) -> None:
    """Each step began when those that it waits for had ended, but for suspected ones: those never
    got so far."""
    seen: set[tuple[UUID, str]] = set()
    lines = book.read_text().splitlines()
    for line in lines:
        what, flow_id, name = line.split()
        if what == "end":
            seen.add((UUID(flow_id), name))
        else:
            for other in pushed[UUID(flow_id)][name]:
                if (UUID(flow_id), other) not in seen and (UUID(flow_id), other) not in suspected:
                    of_it = "\n".join(one for one in lines if flow_id in one)
                    raise AssertionError(f"{name} began before {other} ended:\n{of_it}")


@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("servers", "seconds"),
    [
        ("postgres", 3),
        pytest.param("postgres", 60),
        pytest.param("both", 30),
    ],
    indirect=["servers"],
)
async def test_each_step_ends_once_despite_crashes(
    flows_dsn: str,
    servers: Sequence[str],
    tmp_path: Path,
    chance: random.Random,
    fleet: Fleet,
    seconds: int,
) -> None:
    book, queues = tmp_path / "book", ("steps", "fast")[: len(servers)]
    pushed: dict[UUID, dict[str, tuple[str, ...]]] = {}
    unlucky, suspected = 0, set[tuple[UUID, str]]()
    until = time.monotonic() + seconds
    async with run_worker.application(*servers) as chancy:
        harming = asyncio.create_task(fleet.harm(until))
        while time.monotonic() < until:
            flow, before = graph(book, chance, queues)
            pushed[(await chancy.push(flow)).id] = before
            await asyncio.sleep(0.1)
        await harming
        for id, before in pushed.items():
            reference = FLOWS.reference(chancy, id)
            state = await reference.wait(90)
            steps = await reference.steps()
            assert {one.name for one in steps} == set(before)
            suspected |= {(id, one.name) for one in steps if _suspected(one)}
            if state is WorkflowState.FAILED:
                unlucky += 1
                failed = {(id, one.name) for one in steps if one.state is StepState.FAILED}
                assert failed
                assert failed <= suspected
                continue
            assert state is WorkflowState.SUCCEEDED
            assert {one.state.value for one in steps} <= {"succeeded", "ignored"}
    assert unlucky <= len(pushed) // 10
    assert seconds < 10 or fleet.killed + fleet.frozen > 0
    assert execute(flows_dsn, "select id from chancy.jobs") == []
    missing = (
        "select missing from chancy.workflows_joins join chancy.workflows on id = workflow_id"
        " where missing <> 0 and state = 4"
    )
    assert execute(flows_dsn, missing) == []
    finished = "select count(*) from chancy.finished_jobs group by id having count(*) > 1"
    assert execute(flows_dsn, finished) == []
    _in_order(book, pushed, suspected)
    logger.info(
        "workflows=%d unlucky=%d suspected=%d killed=%d frozen=%d",
        *(len(pushed), unlucky, len(suspected), fleet.killed, fleet.frozen),
    )

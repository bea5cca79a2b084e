"""Steps that end at the same moment, told by different workers."""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.workflow import Workflow, Workflows, WorkflowState
from chancy.plugins.workflow.ends import End, Place, advancing
from tests.workflow import audit, steps
from tests.workflow.running import execute

#: How often two steps race to start the one behind both.
TIMES = 150
STARTED = """
select count(*), count(distinct flow) from public.audit where what = 'pushed' and step = 'join'
"""


def joining() -> Workflow:
    flow = Workflow("w").add(steps.mark.job(), "left").add(steps.mark.job(), "right")
    return flow.add(steps.mark.job(), "join", after=["left", "right"])


def ends(flow: UUID, step: str, *, alone: bool = False) -> tuple[bytes, list[object]]:
    """The statement that tells of the end of a step, and its parameters."""
    end = End(Place(flow, step, 1, False), flow, 4, "1", None, 0.1)
    sql, *parameters = advancing("chancy", [end], alone=alone)
    return sql.encode(), parameters


async def test_steps_that_end_at_once_start_the_next_one_once(flows_dsn: str) -> None:
    audit.begin(flows_dsn)
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        ids = [(await flows.push(chancy, joining())).id for _ in range(TIMES)]
        async with contextlib.AsyncExitStack() as stack:
            connect = psycopg.AsyncConnection.connect
            sides = [
                await stack.enter_async_context(await connect(flows_dsn, autocommit=True))
                for _ in range(3)
            ]

            async def end(side: int, flow: UUID, step: str) -> None:
                # The third is a sweep, which tells again of what a worker tells just then.
                told = ends(flow, step, alone=side == 2)
                await psycopg.AsyncRawCursor(sides[side]).execute(*told)

            for flow in ids:
                told = end(0, flow, "left"), end(1, flow, "right"), end(2, flow, "left")
                await asyncio.gather(*told)
            assert execute(flows_dsn, STARTED) == [(TIMES, TIMES)]
            for flow in ids[:50]:
                await asyncio.gather(end(0, flow, "join"), end(2, flow, "join"))
        for flow in ids[:50]:
            assert await flows.reference(chancy, flow).wait(5) is WorkflowState.SUCCEEDED
    missing = "select distinct missing from chancy.workflows_joins where name = 'join'"
    assert execute(flows_dsn, missing) == [(0,)]


@pytest.mark.parametrize("commits", [True, False])
async def test_a_step_behind_two_starts_with_the_last_that_is_committed(
    flows_dsn: str, commits: bool
) -> None:
    audit.begin(flows_dsn)
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        flow = (await flows.push(chancy, joining())).id
    first = await psycopg.AsyncConnection.connect(flows_dsn)
    other = await psycopg.AsyncConnection.connect(flows_dsn, autocommit=True)
    await psycopg.AsyncRawCursor(first).execute(*ends(flow, "left"))
    told = asyncio.create_task(psycopg.AsyncRawCursor(other).execute(*ends(flow, "right")))
    _, waiting = await asyncio.wait([told], timeout=0.3)
    assert waiting, "the join is counted down by one at a time"
    assert execute(flows_dsn, STARTED) == [(0, 0)]
    await (first.commit() if commits else first.rollback())
    await told
    assert execute(flows_dsn, STARTED) == [(int(commits), int(commits))]
    if not commits:
        await psycopg.AsyncRawCursor(first).execute(*ends(flow, "left"))
        await first.commit()
        assert execute(flows_dsn, STARTED) == [(1, 1)]
    await first.close()
    await other.close()

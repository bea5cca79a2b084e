"""Steps that end at the same time in different workers."""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.workflow import Workflow, Workflows, WorkflowState
from chancy.plugins.workflow.outcomes import StepOutcome, StepRef, advance_statement
from tests.plugins.workflow import audit, steps
from tests.support.locks import BLOCKED
from tests.support.sql import ask
from tests.support.waiting import eventually

#: How often two steps race to start the next one.
TIMES = 150
STARTED = """
select count(*), count(distinct flow) from public.audit where what = 'pushed' and step = 'join'
"""


def joining() -> Workflow:
    flow = Workflow("w").add(steps.mark.job(), "left").add(steps.mark.job(), "right")
    return flow.add(steps.mark.job(), "join", after=["left", "right"])


def ends(
    flow: UUID, step: str, *, state: int = 4, alone: bool = False
) -> tuple[bytes, list[object]]:
    """The statement that stores the outcome of a step, and its parameters."""
    end = StepOutcome(StepRef(flow, step, 1, False), flow, state, "1", None, 0.1)
    sql, *parameters = advance_statement("chancy", [end], alone=alone)
    return sql.encode(), parameters


async def test_steps_that_end_at_once_start_the_next_one_once(flows_dsn: str) -> None:
    audit.begin(flows_dsn)
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        ids = [(await chancy.push(joining())).id for _ in range(TIMES)]
        async with contextlib.AsyncExitStack() as stack:
            connect = psycopg.AsyncConnection.connect
            sides = [
                await stack.enter_async_context(await connect(flows_dsn, autocommit=True))
                for _ in range(3)
            ]

            async def end(side: int, flow: UUID, step: str) -> None:
                # The third is a sweep, which reports an outcome again while a worker reports it.
                told = ends(flow, step, alone=side == 2)
                await psycopg.AsyncRawCursor(sides[side]).execute(*told)

            for flow in ids:
                told = end(0, flow, "left"), end(1, flow, "right"), end(2, flow, "left")
                await asyncio.gather(*told)
            assert ask(flows_dsn, STARTED) == [(TIMES, TIMES)]
            for flow in ids[:50]:
                await asyncio.gather(end(0, flow, "join"), end(2, flow, "join"))
        for flow in ids[:50]:
            assert await flows.reference(chancy, flow).wait(5) is WorkflowState.SUCCEEDED
    missing = "select distinct missing from chancy.workflows_joins where name = 'join'"
    assert ask(flows_dsn, missing) == [(0,)]


@pytest.mark.parametrize("commits", [True, False])
async def test_a_step_behind_two_starts_with_the_last_that_is_committed(
    flows_dsn: str, commits: bool
) -> None:
    audit.begin(flows_dsn)
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        flow = (await chancy.push(joining())).id
    first = await psycopg.AsyncConnection.connect(flows_dsn)
    other = await psycopg.AsyncConnection.connect(flows_dsn, autocommit=True)
    await psycopg.AsyncRawCursor(first).execute(*ends(flow, "left"))
    told = asyncio.create_task(psycopg.AsyncRawCursor(other).execute(*ends(flow, "right")))
    _, waiting = await asyncio.wait([told], timeout=0.3)
    assert waiting, "the join is counted down by one at a time"
    assert ask(flows_dsn, STARTED) == [(0, 0)]
    await (first.commit() if commits else first.rollback())
    await told
    assert ask(flows_dsn, STARTED) == [(int(commits), int(commits))]
    if not commits:
        await psycopg.AsyncRawCursor(first).execute(*ends(flow, "left"))
        await first.commit()
        assert ask(flows_dsn, STARTED) == [(1, 1)]
    await first.close()
    await other.close()


#: Updates of these steps wait for the test.
PAUSE = """
create function public.pause() returns trigger language plpgsql as $$
begin
  if new.name in ('left', 'right') then perform pg_advisory_xact_lock_shared(7); end if;
  return new;
end $$;
create trigger pause before update on chancy.workflows_steps
for each row execute function public.pause();
"""
#: One session waits for the test, and the other one for the test or the first one.
WAITING = f"""
with paused as (select pid from pg_stat_activity where {BLOCKED} and wait_event = 'advisory')
select count(*) = 2 and (select count(*) > 0 from paused) from pg_stat_activity
where {BLOCKED} and (wait_event = 'advisory'
  or pg_blocking_pids(pid) && array(select pid from paused))
"""


async def test_ends_that_waited_for_a_failure_do_not_wait_for_each_other(flows_dsn: str) -> None:
    ask(flows_dsn, PAUSE)
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        reference = await chancy.push(joining().add(steps.mark.job(), "bad"))
        connect = psycopg.AsyncConnection.connect
        async with (
            await connect(flows_dsn) as bad,
            await connect(flows_dsn, autocommit=True) as left,
            await connect(flows_dsn, autocommit=True) as right,
        ):
            await psycopg.AsyncRawCursor(bad).execute(*ends(reference.id, "bad", state=5))
            ask(flows_dsn, "delete from chancy.jobs")
            with psycopg.connect(flows_dsn) as held:
                held.execute("select pg_advisory_xact_lock(7)")
                told = asyncio.gather(
                    psycopg.AsyncRawCursor(left).execute(*ends(reference.id, "left")),
                    psycopg.AsyncRawCursor(right).execute(*ends(reference.id, "right")),
                )
                both = f"select count(*) from pg_stat_activity where {BLOCKED}"
                await eventually(lambda: ask(flows_dsn, both) == [(2,)])
                await bad.commit()
                await eventually(lambda: ask(flows_dsn, WAITING) == [(True,)])
            await told
        assert await reference.wait(5) is WorkflowState.FAILED
        steps_states = "select name, state from chancy.workflows_steps where state > 0 order by 1"
        assert ask(flows_dsn, steps_states) == [("bad", 5), ("left", 4), ("right", 4)]

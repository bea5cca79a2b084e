"""Many signals that arrive before their steps wait for them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.workflow import Workflow, Workflows, WorkflowState
from chancy.plugins.workflow.description import MAX_STEPS
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import states
from tests.plugins.workflow.test_races import ends
from tests.support.locks import BLOCKED
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.sql import count as count_rows
from tests.support.waiting import eventually

FLOWS = Workflows()
#: As if each had been sent in a transaction of its own.
ALL = """
with sent as (
  insert into chancy.workflows_signals (workflow_id, name, payload)
  select s.workflow_id, s.name, to_jsonb(s.place)
  from chancy.workflows_steps s where s.func is null returning workflow_id)
update chancy.workflows set early = (select count(*) from sent) returning early
"""
STATES = "select state, count(*)::int from chancy.workflows_steps group by state order by state"
PIECES = "select count(*) from chancy.workflows_starts"
EARLY = "select early from chancy.workflows"
#: Whether no step has ended before the one that it waited for.
ORDERED = """
select bool_and(before) from (
  select finished_at >= coalesce(lag(finished_at) over (order by place), finished_at) as before
  from chancy.workflows_steps where state = 4) as s
"""

Before = Callable[[int], Sequence[str]]


def line(number: int) -> Sequence[str]:
    return [f"w{number - 1}" if number else "first"]


def ladder(number: int) -> Sequence[str]:
    """Each step waits for the two before it, so no signal alone releases one."""
    return [*line(number), line(number - 1)[0]] if number else ["first"]


def waiting(count: int, before: Before) -> Workflow:
    flow = Workflow("w").add(steps.mark.job(), "first")
    for number in range(count):
        flow.wait_for(f"w{number}", after=before(number))
    return flow.add(steps.mark.job(), "last", after=f"w{count - 1}")


async def end(dsn: str, flow: UUID, step: str, *, most: int | None = None) -> None:
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    async with connection:
        sql, parameters = ends(flow, step)
        await psycopg.AsyncRawCursor(connection).execute(sql, [*parameters[:-2], most, None])


#: As many as a workflow can have: started in pieces, none of which takes longer.
ALL_AT_ONCE = pytest.param(MAX_STEPS - 2, None, marks=[pytest.mark.chaos, pytest.mark.timeout(600)])


@pytest.mark.parametrize(("count", "most"), [(700, None), (700, 1_000), ALL_AT_ONCE])
@pytest.mark.parametrize("before", [line, ladder])
async def test_any_number_of_them_are_taken_when_the_first_begins_to_wait(
    flows_dsn: str, before: Before, count: int, most: int | None
) -> None:
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        reference = await chancy.push(waiting(count, before))
        assert ask(flows_dsn, ALL) == [(count,)]
        await end(flows_dsn, reference.id, "first", most=most)
        if most is not None:  # as in a settlement, whose time is limited
            ((left,),) = ask(flows_dsn, PIECES)
            assert left == int(before is ladder)
            started = 0
            while ask(flows_dsn, "select chancy.workflows_proceed()") == [(True,)]:
                started += 1
            # Rounds of 200 and the one that is in the piece.
            assert started == left * math.ceil((count - 200) / 201)
        assert ask(flows_dsn, STATES) == [(0, 1), (4, count + 1)]
        assert ask(flows_dsn, EARLY) == [(0,)]
        assert ask(flows_dsn, ORDERED) == [(True,)]
        last = present(await reference.step(f"w{count - 1}"))
        assert last.result == count + 1
        assert count_rows(flows_dsn, "chancy.jobs where meta::text like %s", ['%"last"%']) == 1
        await end(flows_dsn, reference.id, "last")
        assert await reference.wait(5) is WorkflowState.SUCCEEDED


#: As if the step were being counted by another transaction.
HOLD = "select from chancy.workflows_joins where name = 'm' for update"
WAIT = f"select count(*) from pg_stat_activity where {BLOCKED}"


async def test_released_steps_are_locked_in_one_order(flows_dsn: str) -> None:
    """One step releases z, and a through an early signal; the other one releases a and then z."""
    flow = Workflow("w")
    for name in ("left", "right", "other"):
        flow.add(steps.mark.job(), name)
    flow.wait_for("go", after="left")
    flow.add(steps.mark.job(), "a", after=["go", "right", "other"])
    flow.add(steps.mark.job(), "m", after=["right", "other"])
    flow.add(steps.mark.job(), "z", after=["left", "right", "other"])
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        reference = await chancy.push(flow)
        await reference.signal("go", 1)
        with psycopg.connect(flows_dsn) as held:
            held.execute(HOLD.encode())
            right = asyncio.create_task(end(flows_dsn, reference.id, "right"))
            await eventually(lambda: ask(flows_dsn, WAIT) == [(1,)])
            left = asyncio.create_task(end(flows_dsn, reference.id, "left"))
            await eventually(lambda: ask(flows_dsn, WAIT) == [(2,)])
        await asyncio.gather(left, right)
        await end(flows_dsn, reference.id, "other")
        found = await states(reference)
    assert {found[name] for name in ("a", "m", "z")} == {"pending"}


async def test_one_that_waits_in_a_piece_is_over_as_the_piece_is_started(flows_dsn: str) -> None:
    flow = Workflow("w").add(steps.mark.job(), "first")
    for name in ("a", "b"):
        flow.add(steps.mark.job(), name, after="first")
    flow.wait_for("go", after="first").wait_for("then", after="go")
    flow.add(steps.mark.job(), "last", after=["then", "b"])
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        reference = await chancy.push(flow)
        for name in ("go", "then"):
            await reference.signal(name, 1)
        await end(flows_dsn, reference.id, "first", most=1)
        proceed = "select chancy.workflows_proceed() from generate_series(1, 3)"
        with psycopg.connect(flows_dsn) as held:
            # A step ends meanwhile, with the workflow locked exclusively because of early signals.
            held.execute(b"select from chancy.workflows for no key update")
            assert ask(flows_dsn, proceed) == [(False,)] * 3
        assert ask(flows_dsn, proceed) == [(True,), (True,), (False,)]
        await end(flows_dsn, reference.id, "b")
        found = await states(reference)
    assert (found["go"], found["then"], found["last"]) == ("succeeded", "succeeded", "pending")
    assert ask(flows_dsn, EARLY) == [(0,)]


async def test_they_are_counted_again_when_steps_are_run_again(flows_dsn: str) -> None:
    flow = Workflow("w").add(steps.mark.job(), "first").wait_for("go", after="first")
    flow.add(steps.mark.job(), "bad", after="go").wait_for("late", after="bad")
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        reference = await chancy.push(flow)
        for name in ("go", "late"):
            await reference.signal(name, 1)
        await end(flows_dsn, reference.id, "first")
        assert ask(flows_dsn, EARLY) == [(1,)]
        sql, parameters = ends(reference.id, "bad", state=5)
        with psycopg.connect(flows_dsn, autocommit=True) as connection:
            psycopg.RawCursor(connection).execute(sql, parameters)
        ask(flows_dsn, "delete from chancy.jobs")
        ask(flows_dsn, "update chancy.workflows set early = 7")
        assert await reference.retry("first") == 4
        assert ask(flows_dsn, EARLY) == [(1,)]
        assert await reference.signal("go"), "it waits anew"
        assert not await reference.signal("late")

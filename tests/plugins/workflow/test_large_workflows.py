"""Operations on all steps of a large workflow take time proportional to their number."""

from __future__ import annotations

import time
from collections import Counter

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.workflow import From, Workflow, WorkflowReference, Workflows, WorkflowState
from chancy.plugins.workflow.outcomes import StepOutcome, StepRef, advance_statement
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import is_in, working
from tests.support.sql import ask

WIDE = 20_000
#: Seconds; a plan that scans all steps for each of them takes minutes.
SOON_S = 15.0
#: The planner estimates that a workflow has three steps.
SMALL = """
insert into chancy.workflows_steps (workflow_id, name, place, state, needs, joins, job_id, queue,
  priority, func, arguments, max_attempts)
select md5('w' || n)::uuid, 's' || p, p, 4, 0, '{""}', md5(n || 'w' || p)::uuid, 'q', 0, 'a.b',
  '{}', 3
from generate_series(1, 5000) as n, generate_series(1, 3) as p;
insert into chancy.workflows_joins
select md5('w' || n)::uuid, '', 0 from generate_series(1, 5000) as n
"""


def among_small_ones(dsn: str) -> None:
    for statement in SMALL.split(";"):
        ask(dsn, statement)
    for table in ("steps", "joins"):
        ask(dsn, f"alter table chancy.workflows_{table} set (autovacuum_enabled = off)")
        ask(dsn, f"analyze chancy.workflows_{table}")


async def pushed(chancy: Chancy, dsn: str, *, undo: bool) -> WorkflowReference:
    """A workflow among small ones."""
    among_small_ones(dsn)
    flow = Workflow("w")
    names = [f"n{place}" for place in range(WIDE)]
    for name in names:
        flow.add(steps.mark.job(), name, undo=steps.undo.job(From(name)) if undo else None)
    flow.add(steps.mark.job(), "bad", after=names[:2], on_failure="compensate")
    return await chancy.push(flow)


def end(dsn: str, flow: WorkflowReference, step: str, state: int) -> float:
    """Store the outcome of a step; returns the seconds that took."""
    sql, *parameters = advance_statement(
        "chancy", [StepOutcome(StepRef(flow.id, step, 1, False), flow.id, state, None, None, 0.1)]
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.monotonic()
        psycopg.RawCursor(connection).execute(sql.encode(), parameters)
        return time.monotonic() - began


@pytest.mark.chaos
async def test_a_wide_saga_begins_to_be_undone(flows_dsn: str) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        flow = await pushed(chancy, flows_dsn, undo=True)
        ask(
            flows_dsn,
            "update chancy.workflows_steps set state = 4, finished_at = now()"
            " where undoes is null and name like 'n%%'",
        )
        ask(flows_dsn, "delete from chancy.jobs")
        assert end(flows_dsn, flow, "bad", 5) < SOON_S
        assert await is_in(flow, WorkflowState.COMPENSATING)
        (first,) = ask(flows_dsn, "select meta #>> '{workflow,step}' from chancy.jobs")
        assert first == (f"undo n{WIDE - 1}",)


@pytest.mark.chaos
async def test_all_of_a_wide_workflow_runs_again(flows_dsn: str) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        flow = await pushed(chancy, flows_dsn, undo=False)
        ask(flows_dsn, "delete from chancy.jobs")
        ask(flows_dsn, "update chancy.workflows_steps set state = 5 where name like 'n%%'")
        ask(flows_dsn, "update chancy.workflows set state = 5")
        began = time.monotonic()
        assert await flow.retry() == WIDE
        assert time.monotonic() - began < SOON_S
        assert ask(flows_dsn, "select count(*) from chancy.jobs") == [(WIDE,)]


@pytest.mark.chaos
async def test_a_step_that_most_are_behind_runs_again(flows_dsn: str) -> None:
    half = WIDE // 2
    flow = Workflow("w").add(steps.mark.job(), "root")
    for place in range(half):
        flow.add(steps.mark.job(), f"a{place}", after="root")
    for place in range(half):
        both = [f"a{place}", f"a{(place + 1) % half}"]
        flow.add(steps.mark.job(), f"b{place}", after=both)
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        among_small_ones(flows_dsn)
        reference = await chancy.push(flow)
        ask(flows_dsn, "delete from chancy.jobs")
        ask(flows_dsn, "update chancy.workflows_steps set state = 4")
        ask(flows_dsn, "update chancy.workflows_joins set missing = 0")
        ask(flows_dsn, "update chancy.workflows set state = 4")
        began = time.monotonic()
        assert await reference.retry("root") == WIDE + 1
        assert time.monotonic() - began < SOON_S
        assert ask(flows_dsn, "select count(*) from chancy.jobs") == [(1,)]
        missing = "select distinct missing from chancy.workflows_joins where name <> ''"
        assert ask(flows_dsn, missing) == [(2,)]


@pytest.mark.chaos
async def test_a_worker_runs_a_wide_fan_to_its_end_each_step_once(flows_dsn: str) -> None:
    half = WIDE // 2
    names = [f"n{place}" for place in range(half)]
    flow = Workflow("fan").add(steps.mark.job(), "root")
    for name in names:
        flow.add(steps.mark.job(), name, after="root")
    flow.add(steps.mark.job(), "end", after=names)
    flows = Workflows()
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert await reference.result(90) == "end"
    assert Counter(steps.ran) == Counter(["root", *names, "end"])
    assert (steps.ran[0], steps.ran[-1]) == ("root", "end")
    states = "select state, count(*) from chancy.workflows_steps group by state"
    assert ask(flows_dsn, states) == [(4, half + 2)]
    assert ask(flows_dsn, "select count(*) from chancy.workflows_starts") == [(0,)]

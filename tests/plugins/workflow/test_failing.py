"""Workflows that fail while some of their steps run: when they end, and how much that reads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Literal

import psycopg
import pytest

from chancy import Chancy
from chancy.plugins.workflow import Workflow, WorkflowReference, Workflows, WorkflowState
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import StepOutcome, StepRef
from tests.plans.flows import pages
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import is_in, sweep_of
from tests.support.sql import ask

FLOWS = Workflows()
JOB = "select job_id from chancy.workflows_steps where workflow_id = %s and name = %s"
FAILURE = '{"type": "ValueError", "message": "bad"}'
OTHERS = """
insert into chancy.jobs (id, pos, state, queue, func)
select gen_random_uuid(), nextval('chancy.positions'), 0, 'other', 'f'
from generate_series(1, 20000)
"""
#: Waiting steps, and the maximum pages that a completion reads.
WIDTH, MOST_PAGES = 1_000, 120


async def tell(dsn: str, chancy: Chancy, reference: WorkflowReference, *names: str) -> None:
    """End steps, in one settlement; those of "bad" failed."""
    ends: list[StepOutcome] = []
    for name in names:
        ((job,),) = ask(dsn, JOB, [reference.id, name])
        ask(dsn, "delete from chancy.jobs where id = %s", [job])
        bad = name.startswith("bad")
        place = StepRef(reference.id, name, 1, False)
        ends.append(StepOutcome(place, job, 5 if bad else 4, None, FAILURE if bad else None, None))
    await WorkflowCalls(chancy.broker).advance(ends)


@pytest.mark.parametrize("policy", ["fail", "compensate"])
async def test_the_last_of_what_runs_ends_it_in_whichever_order(
    flows_dsn: str, policy: Literal["fail", "compensate"]
) -> None:
    compensates = policy == "compensate"
    waits = WorkflowState.COMPENSATING if compensates else WorkflowState.FAILING
    over = WorkflowState.COMPENSATED if compensates else WorkflowState.FAILED
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        orders: list[Sequence[str]] = [*permutations(("a", "bad too", "c")), ("c",)]
        for order in orders:
            flow = Workflow("w").add(steps.once.job(), "bad", on_failure=policy)
            for name in order:
                flow.add(steps.once.job(), name)
                flow.add(steps.once.job(), f"{name[0]} waits", after=name)
            reference = await chancy.push(flow)
            await tell(flows_dsn, chancy, reference, "bad")
            for name in order:
                assert await is_in(reference, waits), f"{name} of {order} runs yet"
                await tell(flows_dsn, chancy, reference, name)
            assert await is_in(reference, over), order


async def test_a_service_that_fails_again_is_reported_again(flows_dsn: str) -> None:
    """A step may run by then that did not run at the first failure."""
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        flow = Workflow("w").add(steps.once.job(), "y").add(steps.once.job(), "a", after="y")
        flow.add(steps.once.job(), "bad").add(steps.once.job(), "z").add(steps.once.job(), "bad z")
        reference = await chancy.push(flow)
        await tell(flows_dsn, chancy, reference, "bad")
        await tell(flows_dsn, chancy, reference, "y")
        assert await reference.retry() == 1  # which starts "a", and "bad" again
        await tell(flows_dsn, chancy, reference, "bad z")
        await tell(flows_dsn, chancy, reference, "z")
        ((again,),) = ask(flows_dsn, JOB, [reference.id, "bad"])
        ask(flows_dsn, "delete from chancy.jobs where id = %s", [again])
        end = StepOutcome(StepRef(reference.id, "bad", 2, False), again, 4, None, None, None)
        await WorkflowCalls(chancy.broker).advance([end])
        assert await is_in(reference, WorkflowState.FAILING)
        await tell(flows_dsn, chancy, reference, "a")
        assert await is_in(reference, WorkflowState.FAILED)


REFUSE = """
create function chancy.refuse() returns trigger language plpgsql as $$
begin
  raise exception 'not this one' using errcode = 'check_violation';
end $$;
create trigger refuse before update on chancy.workflows for each row
  when (new.name = 'refused') execute function chancy.refuse();
"""


async def test_a_workflow_whose_end_is_refused_holds_up_no_other(
    flows_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        refused, free = [
            await chancy.push(Workflow(name).wait_for("never")) for name in ("refused", "free")
        ]
        # As if their last running steps had ended while another one failed.
        ask(flows_dsn, "update chancy.workflows set state = 3, failed = 1")
        ask(flows_dsn, REFUSE)
        sweep = sweep_of(chancy)
        await sweep.turn()
        assert await is_in(free, WorkflowState.FAILED)
        assert f"outcomes_postponed of=workflow id={refused.id}" in caplog.text
        ask(flows_dsn, "drop trigger refuse on chancy.workflows")
        await sweep.turn()
        assert await is_in(refused, WorkflowState.FAILED)


@pytest.mark.parametrize("policy", ["fail", "ignore", "compensate"])
async def test_an_end_beside_a_failure_looks_at_what_changes(
    flows_dsn: str, policy: Literal["fail", "ignore", "compensate"]
) -> None:
    flow = Workflow("w").add(steps.once.job(), "z last")
    for n in range(WIDTH):
        flow.add(steps.once.job(), f"m{n:04}", after="z last")
    for name in ("bad", "bad too", "zz"):
        flow.add(steps.once.job(), name, on_failure=policy)
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        reference = await chancy.push(flow)
        # The second failure scans all waiting steps, once.
        for name in ("bad", "bad too"):
            await tell(flows_dsn, chancy, reference, name)
        ((job,),) = ask(flows_dsn, JOB, [reference.id, "zz"])
    with psycopg.connect(flows_dsn, autocommit=True) as connection:
        connection.execute(OTHERS)
        connection.execute("analyze chancy.workflows_steps, chancy.jobs, chancy.workflows")
        end = [[reference.id], ["zz"], [1], [job], [5], None, [FAILURE], None, True, 1_000, None]
        pages(connection, "advance", *end)  # reads the catalog, too
        assert pages(connection, "advance", *end) <= MOST_PAGES

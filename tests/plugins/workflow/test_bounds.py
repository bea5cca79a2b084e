"""As many steps as a workflow may have, and one more."""

from __future__ import annotations

import json

import pytest

from chancy import Chancy, PushError, job
from chancy.plugins.workflow import StepState, Workflow, Workflows
from chancy.plugins.workflow.description import MAX_STEPS
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import working
from tests.support.sql import ask
from tests.support.waiting import eventually

FLOWS = Workflows()
app: list[Chancy] = []
refused: list[PushError] = []


async def extend(prefix: str, count: int) -> None:
    more = Workflow("more")
    for number in range(count):
        more.add(steps.mark.job(), f"{prefix}{number}", after="go")
    try:
        await FLOWS.extend(app[0], more)
    except PushError as error:
        refused.append(error)


@job(queue="async")
async def fill() -> None:
    """Adds steps up to one below the limit, then two, one too many, then one, and one more."""
    await extend("m", MAX_STEPS - 3)
    assert refused == []
    await extend("two ", 2)
    assert len(refused) == 1
    await extend("one ", 1)
    assert len(refused) == 1
    await extend("more ", 1)


@pytest.mark.chaos
async def test_a_workflow_is_filled_to_its_bound_and_no_further(flows_dsn: str) -> None:
    app.clear()
    refused.clear()
    flow = Workflow("w").wait_for("go").add(fill.job().with_max_attempts(1), "fill")
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        reference = await chancy.push(flow)

        async def filled() -> bool:
            found = await reference.progress()
            return found is not None and found.succeeded == 1

        await eventually(filled, timeout=60)
        found = {one.name: one for one in await reference.steps()}
        record = await reference.get()
    assert [str(one).partition("adds nothing: ")[2] for one in refused] == [
        "the workflow would have 50,001 steps; the limit is 50,000: push the rest as jobs, or as "
        "another workflow"
    ] * 2
    assert len(found) == MAX_STEPS
    assert record is not None
    assert record.steps == MAX_STEPS
    assert found["one 0"].state is StepState.WAITING
    assert {"two 0", "two 1", "more 0"}.isdisjoint(found)
    assert found["go"].next == tuple(name for name in found if name not in ("go", "fill"))
    (missing,) = ask(flows_dsn, "select missing from chancy.workflows_joins where name = ''")
    assert missing == (MAX_STEPS - 2 + 1,)


@job(queue="async", max_attempts=1)
async def add_undone() -> None:
    """Adds a step with an undo, and then two, which is one too many."""
    for names in (["a"], ["b", "c"], ["d"]):
        more = Workflow("more")
        for name in names:
            more.add(steps.mark.job(), name, undo=steps.undo.job(name))
        try:
            await FLOWS.extend(app[0], more)
        except PushError as error:
            refused.append(error)


async def test_steps_that_undo_are_not_counted(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to pushes and to steps that are added."""
    # In this order: a first import of the second one copies the limit of the first.
    for module in ("extension", "description"):
        monkeypatch.setattr(f"chancy.plugins.workflow.{module}.MAX_STEPS", 4)
    app.clear()
    refused.clear()
    flow = Workflow("w").add(add_undone.job(), "first", undo=steps.undo.job("first"))
    flow.add(steps.mark.job(), "last", undo=steps.undo.job("last"), after="first")
    async with working(flows_dsn, FLOWS) as chancy:
        app.append(chancy)
        reference = await chancy.push(flow)
        await reference.result(10)
        found = {one.name for one in await reference.steps() if one.undoes is None}
    assert found == {"first", "last", "a", "d"}
    (why,) = [str(one) for one in refused]
    assert "would have 5 steps; the limit is 4" in why


LARGE = """
insert into chancy.workflows_steps (workflow_id, name, place, state, needs, joins, job_id, queue,
  priority, max_attempts, result)
select '00000000-0000-0000-0000-000000000001', 'm' || n, n, 4, 0, '{in}', gen_random_uuid(), 'q', 0,
  1, to_jsonb(repeat('x', %s)) from generate_series(1, %s) as n
"""
VALUE = """
select jsonb_array_length(chancy.workflows_value('00000000-0000-0000-0000-000000000001', %s))
"""
ARGUMENTS = """
select jsonb_object_keys(chancy.workflows_arguments('00000000-0000-0000-0000-000000000001',
  '{"x": 1}', %s))
"""


@pytest.mark.chaos
def test_lists_of_results_are_bounded_by_what_they_take_unpacked(flows_dsn: str) -> None:
    """Repetitive values take a hundredth of their size in the table. The server would refuse a list
    of 256 MiB, and with it the settlement."""
    prefix, names = '{"prefix": "m", "path": []}', [f"m{n}" for n in range(1, 11)]
    listed = json.dumps({"steps": names, "path": []})
    ask(flows_dsn, LARGE, [6_000_000, 10])
    assert ask(flows_dsn, VALUE, [listed]) == [(10,)]
    both = json.dumps({"a": json.loads(prefix), "b": json.loads(listed)})
    assert ask(flows_dsn, ARGUMENTS, [both]) == [("a",), ("x",)]
    ask(flows_dsn, LARGE.replace("'m'", "'m1'"), [7_500_000, 1])
    assert ask(flows_dsn, VALUE, [prefix]) == [(None,)]


def test_lists_of_parts_of_results_are_bounded_by_the_parts(flows_dsn: str) -> None:
    ask(flows_dsn, LARGE.replace("to_jsonb(", "jsonb_build_object('a', 1, 'b', "), [10_000_000, 8])
    wanted = '{"prefix": "m", "path": ["a"]}'
    assert ask(flows_dsn, VALUE, [wanted]) == [(8,)]
    assert ask(flows_dsn, VALUE, [wanted.replace('"a"', '"none"')]) == [(8,)]

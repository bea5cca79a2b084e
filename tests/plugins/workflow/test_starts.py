"""A settlement that releases many steps starts some of them; the others are started in pieces."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from chancy import Chancy
from chancy.plugin.runtime import Runtime
from chancy.plugins.workflow import Workflow, WorkflowReference, Workflows, WorkflowState
from chancy.plugins.workflow.calls import WorkflowCalls
from chancy.plugins.workflow.outcomes import SQL, StepOutcome, StepRef, advance_statement
from chancy.plugins.workflow.starts import Starts, start_pieces
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import states, sweep_of, working
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

WIDTH = 7
PIECES = "select cardinality(names) from chancy.workflows_starts order by id"


class Killed(Starts):
    """As in a worker that dies after its settlement is committed."""

    def add(self, pieces: int) -> None:
        assert pieces == 3


class Halting(Workflows):
    """Starts no pieces, and does not sweep."""

    def __init__(self) -> None:
        super().__init__()
        self._starts = Killed()

    async def serve(self, runtime: Runtime) -> None: ...


class Counted(Starts):
    def __init__(self) -> None:
        super().__init__()
        self.left: list[int] = []

    def add(self, pieces: int) -> None:
        self.left.append(pieces)
        super().add(pieces)


class Counting(Workflows):
    """Sweeps so rarely that only the settlements start steps."""

    def __init__(self) -> None:
        super().__init__(sweep_s=3600)
        self._starts = self.counted = Counted()


@pytest.fixture(autouse=True)
def pieces_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Starts, "most", 2)


def fan(*, gate: bool = False) -> Workflow:
    """A step before many others and one after them; the first of the many waits for the gate."""
    flow = Workflow("fan").add(steps.anything.job(0), "out")
    names = [f"n{number}" for number in range(WIDTH)]
    for number, name in enumerate(names):
        held = gate and number == 0
        flow.add(steps.held.job() if held else steps.anything.job(number), name, after="out")
    return flow.add(steps.anything.job(9), "in", after=names)


async def halted(chancy: Chancy, dsn: str, flows: Workflows) -> WorkflowReference:
    """A workflow of which three pieces wait to be started."""
    reference = await chancy.push(fan(gate=True))
    await eventually(lambda: ask(dsn, PIECES) == [(2,), (2,), (1,)])
    assert ask(dsn, "select count(*) from chancy.jobs")[0][0] <= 2
    return reference


async def test_the_worker_that_let_them_go_starts_all(flows_dsn: str) -> None:
    flows = Counting()
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(fan())
        assert await reference.wait(10) is WorkflowState.SUCCEEDED
        assert flows.counted.left == [3]
        assert ask(flows_dsn, PIECES) == []
        assert set((await states(reference)).values()) == {"succeeded"}
    ran = ask(flows_dsn, "select count(*), count(distinct id) from chancy.finished_jobs")
    assert ran == [(WIDTH + 2, WIDTH + 2)]


async def test_remaining_steps_are_started_before_the_service_begins(flows_dsn: str) -> None:
    flows = Halting()
    async with working(flows_dsn, flows) as chancy:
        reference = await halted(chancy, flows_dsn, flows)
        late = Starts()
        late.add(3)
        serving = asyncio.create_task(late.serve(SQL.on(chancy.broker), chancy.clock))
        await eventually(lambda: ask(flows_dsn, PIECES) == [])
        serving.cancel()
        await asyncio.wait([serving])
        steps.gate.set()
        assert await reference.wait(10) is WorkflowState.SUCCEEDED


async def test_the_sweep_of_another_starts_what_a_killed_worker_left(flows_dsn: str) -> None:
    flows = Halting()
    async with working(flows_dsn, flows) as chancy:
        reference = await halted(chancy, flows_dsn, flows)
        assert await sweep_of(chancy).turn() == 0, "none of them counts as gone"
        assert ask(flows_dsn, PIECES) == []
        steps.gate.set()
        assert await reference.wait(10) is WorkflowState.SUCCEEDED
        assert set((await states(reference)).values()) == {"succeeded"}


async def test_pieces_of_a_cancelled_workflow_start_nothing(flows_dsn: str) -> None:
    flows = Halting()
    async with working(flows_dsn, flows) as chancy:
        reference = await halted(chancy, flows_dsn, flows)
        assert await reference.cancel()
        # The settlement locks the workflow, and a process that waits for it takes no piece.
        await eventually(lambda: ask(flows_dsn, "select count(*) from chancy.jobs") == [(0,)])
        assert await start_pieces(SQL.on(chancy.broker)) == 3
        assert ask(flows_dsn, PIECES) == []
        assert ask(flows_dsn, "select count(*) from chancy.jobs") == [(0,)]
        assert (await states(reference))["n6"] == "cancelled"


async def test_a_restarted_workflow_starts_the_remaining_steps_at_once(flows_dsn: str) -> None:
    flows = Halting()
    async with working(flows_dsn, flows) as chancy:
        reference = await halted(chancy, flows_dsn, flows)
        assert await reference.cancel()
        await eventually(lambda: ask(flows_dsn, "select count(*) from chancy.jobs") == [(0,)])
        steps.gate.set()
        await reference.retry()
        assert ask(flows_dsn, PIECES) == []
        assert await reference.wait(10) is WorkflowState.SUCCEEDED


async def test_a_workflow_that_another_session_holds_delays_no_caller(flows_dsn: str) -> None:
    flows = Halting()
    async with working(flows_dsn, flows) as chancy:
        held = await halted(chancy, flows_dsn, flows)
        other = await halted_too(chancy, flows_dsn, flows)
        with psycopg.connect(flows_dsn) as connection:
            connection.execute(
                "select from chancy.workflows where id = %s for no key update", [held.id]
            )
            assert await asyncio.wait_for(sweep_of(chancy).turn(), 10) == 0
            waiting = ask(flows_dsn, "select distinct workflow_id from chancy.workflows_starts")
            assert waiting == [(held.id,)]
        assert await start_pieces(SQL.on(chancy.broker)) == 3
        steps.gate.set()
        for one in (held, other):
            assert await one.wait(10) is WorkflowState.SUCCEEDED


async def halted_too(chancy: Chancy, dsn: str, flows: Workflows) -> WorkflowReference:
    reference = await chancy.push(fan())
    await eventually(lambda: len(ask(dsn, PIECES)) == 6)
    return reference


async def settled_at_once(dsn: str, flows: int, width: int) -> tuple[list[int], int]:
    """The pieces left of each workflow, and the number of jobs, after one settlement has ended the
    first steps of all of them."""
    ends: list[StepOutcome] = []
    async with Chancy(dsn, plugins=[Workflows()]) as chancy:
        for _ in range(flows):
            flow = Workflow("w").add(steps.mark.job(), "out")
            for number in range(width):
                flow.add(steps.mark.job(), f"n{number}", after="out")
            reference = await chancy.push(flow)
            out = present(await reference.step("out"))
            assert out.job_id is not None
            ends.append(
                StepOutcome(StepRef(reference.id, "out", 1, False), out.job_id, 4, None, None, None)
            )
        sql, *parameters = advance_statement("chancy", ends, most=2)
        ((_, left),) = await SQL.on(chancy.broker).store.fetch(sql, *parameters)
    pieces = [size for (size,) in ask(dsn, PIECES)]
    assert left == len(pieces)
    # The jobs of the first steps are not settled here.
    return pieces, ask(dsn, "select count(*) from chancy.jobs")[0][0] - flows


@pytest.mark.parametrize(
    ("flows", "width", "left", "started"),
    [(4, 2, [], 8), (3, 3, [1, 1, 1], 6), (10, 2, [2, 2], 16), (3, 0, [], 0)],
)
async def test_a_settlement_starts_the_first_of_each_workflow(
    flows_dsn: str, flows: int, width: int, left: list[int], started: int
) -> None:
    """Here, up to two of each, and eight times as many in total."""
    assert await settled_at_once(flows_dsn, flows, width) == (left, started)


async def many_pieces(chancy: Chancy, dsn: str) -> int:
    """More pieces than the attempts of a worker could start if each started two."""
    await settled_at_once(dsn, 1, 60)
    return int(ask(dsn, "select count(*) from chancy.workflows_starts")[0][0])


async def test_all_that_a_worker_has_left_is_started(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugins.workflow.starts.MOST_PIECES", 2)
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        starts = Starts()
        starts.add(await many_pieces(chancy, flows_dsn))
        serving = asyncio.create_task(starts.serve(SQL.on(chancy.broker), chancy.clock))
        await eventually(lambda: ask(flows_dsn, PIECES) == [])
        serving.cancel()
        await asyncio.wait([serving])
    assert ask(flows_dsn, "select count(*) from chancy.jobs") == [(61,)]


async def test_a_sweep_that_finds_many_continues_at_once(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugins.workflow.starts.MOST_PIECES", 2)
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        assert await many_pieces(chancy, flows_dsn) == 29
    async with working(flows_dsn, Workflows(sweep_s=3600)):
        await eventually(lambda: ask(flows_dsn, PIECES) == [])


REFUSE = """
create function chancy.refuse() returns trigger language plpgsql as $$
begin
  raise exception 'not this one' using errcode = 'check_violation';
end $$;
create trigger refuse before insert on chancy.jobs for each row
  when (new.meta -> 'workflow' ->> 'step' = 'n3' and new.meta -> 'workflow' ->> 'id' = '{}')
  execute function chancy.refuse();
"""


async def test_a_step_that_cannot_be_started_stops_no_other(flows_dsn: str) -> None:
    flows = Halting()
    async with working(flows_dsn, flows) as chancy:
        bad = await halted(chancy, flows_dsn, flows)
        other = await halted_too(chancy, flows_dsn, flows)
        # In a thread: it waits for a settlement of the worker, which runs in this event loop.
        await asyncio.to_thread(ask, flows_dsn, REFUSE.format(bad.id))
        await sweep_of(chancy).turn()
        assert ask(flows_dsn, PIECES) == []
        found = present(await bad.step("n3"))
        assert found.error is not None
        assert "not this one" in found.error["message"]
        assert "waiting" not in {(await states(bad))["n2"], (await states(other))["n6"]}
        steps.gate.set()
        assert await bad.wait(10) is WorkflowState.FAILED
        assert await other.wait(10) is WorkflowState.SUCCEEDED
        await asyncio.to_thread(ask, flows_dsn, "drop trigger refuse on chancy.jobs")
        await bad.retry()
        assert await bad.wait(10) is WorkflowState.SUCCEEDED


async def test_unreported_steps_are_also_started_in_pieces(flows_dsn: str) -> None:
    async with Chancy(flows_dsn, plugins=[Workflows()]) as chancy:
        reference = await chancy.push(fan())
        out = present(await reference.step("out"))
        assert out.job_id is not None
        end = StepOutcome(StepRef(reference.id, "out", 1, False), out.job_id, 4, None, None, None)
        await WorkflowCalls(chancy.broker).advance([end])
    by = "select count(distinct xmin::text), count(*) from chancy.jobs where id <> %s"
    assert ask(flows_dsn, by, [out.job_id]) == [(4, WIDTH)]
    assert ask(flows_dsn, PIECES) == []

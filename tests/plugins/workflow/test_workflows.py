"""Workflows beside a worker: order, results, joins, signals, additions."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, PushError, Queue, WaitTimeout
from chancy.plugins.workflow import (
    Each,
    From,
    StepState,
    Workflow,
    WorkflowFilter,
    WorkflowRecord,
    WorkflowReference,
    Workflows,
    WorkflowState,
    chain,
    chord,
    group,
)
from chancy.testing.memory import MemoryBroker
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import working
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually


async def test_steps_run_in_their_order_and_give_their_results(flows_dsn: str) -> None:
    flows = Workflows()
    flow = Workflow("shop")
    flow.add(steps.fetch.job("http://x"), "fetch").add(steps.count.job(From("fetch")), "count")
    flow.add(steps.double.job(From("count", "words")), "double")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        assert reference.id == flow.id
        assert await reference.result(10) == 6
        found = await reference.steps()
        record = await reference.get()
        progress = await reference.progress()
    assert [one.name for one in found] == ["fetch", "count", "double"]
    assert {one.state for one in found} == {StepState.SUCCEEDED}
    assert found[0].result == {"url": "http://x", "words": ["a", "b", "c"]}
    assert found[0].next == ("count",)
    assert all(one.took_s is not None and one.started_at is not None for one in found)
    assert record is not None
    assert (record.state, record.steps, record.error) == (WorkflowState.SUCCEEDED, 3, None)
    assert record.finished_at is not None
    assert record.finished_at >= record.pushed_at
    assert progress is not None
    assert (progress.total, progress.succeeded, progress.fraction) == (3, 3, 1.0)


async def test_steps_become_jobs_in_the_order_in_which_they_were_added(flows_dsn: str) -> None:
    flow = Workflow("w").add(steps.mark.job(), "first")
    added = ["z", "a", "y", "b", "x"]
    for name in added:
        flow.add(steps.held.job(), name, after="first")
    by_position = "select meta -> 'workflow' ->> 'step' from chancy.jobs order by pos"
    async with working(flows_dsn, Workflows()) as chancy:
        reference = await chancy.push(flow)
        await eventually(lambda: "first" in steps.ran and len(ask(flows_dsn, by_position)) == 5)
        assert [name for (name,) in ask(flows_dsn, by_position)] == added
        steps.gate.set()
        assert await reference.wait(10) is WorkflowState.SUCCEEDED


async def test_a_join_does_not_begin_before_the_last(flows_dsn: str) -> None:
    flows = Workflows()
    flow = Workflow("fan").add(steps.held.job(), "slow").add(steps.mark.job(), "quick")
    flow.add(steps.mark.job(), "behind quick", after="quick")
    flow.add(steps.mark.job(), "end", after=["slow", "quick", "behind quick"])
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)

        async def two() -> bool:
            found = await reference.progress()
            return found is not None and found.succeeded == 2

        await eventually(two)
        await (await chancy.push(steps.double.job(1))).wait(10)  # what began before has run
        assert "end" not in steps.ran
        steps.gate.set()
        assert await reference.result(10) == "end"


async def test_chains_groups_chords_and_sub_workflows(flows_dsn: str) -> None:
    flows = Workflows()
    squares = chord("squares", [steps.double.job(n) for n in range(5)], steps.total.job(Each()))
    line = chain("line", steps.number.job(4), steps.double.job(From()), steps.double.job(From()))
    both = Workflow("both").include(squares).include(line, "then", after="squares")
    both.add(steps.total.job(Each("squares", "then")), "sum")
    async with working(flows_dsn, flows) as chancy:
        assert await (await chancy.push(squares)).result(10) == 20
        assert await (await chancy.push(line)).result(10) == 16
        reference = await chancy.push(both)
        assert await reference.result(10) == 36
        ended = {one.name: one.finished_at for one in await reference.steps()}
        assert ended["squares/total"] < ended["then/number"]  # type: ignore[operator]
        found = await chancy.push(group("g", [steps.double.job(1), steps.double.job(2)]))
        assert await found.result(10) == {"double": 2, "double 2": 4}


async def test_results_by_prefix_and_path(flows_dsn: str) -> None:
    flows = Workflows()
    flow = Workflow("p").add(steps.mapping.job(), "a 1").add(steps.mapping.job(), "a 2")
    flow.add(steps.mapping.job(), "b")
    flow.add(
        steps.anything.job(Each(prefix="a ", path=("items", 1, "name"))), after=["a 1", "a 2", "b"]
    )
    async with working(flows_dsn, flows) as chancy:
        assert await (await chancy.push(flow)).result(10) == ["y", "y"]


async def test_a_prefix_leaves_out_the_step_itself(flows_dsn: str) -> None:
    flow = Workflow("p").add(steps.anything.job(Each(prefix="page ")), "page all")
    flow.add(steps.number.job(2), "page 2").add(steps.number.job(1), "page 1")
    async with working(flows_dsn, Workflows()) as chancy:
        assert await (await chancy.push(flow)).result(10) == [2, 1]


async def test_missing_parts_of_a_result_are_left_out_of_the_call(flows_dsn: str) -> None:
    flows = Workflows()
    flow = Workflow("p").add(steps.anything.job({"a": None}), "source")
    flow.add(steps.default.job(From("source", "b")), "absent")
    flow.add(steps.anything.job(From("source", "a")), "null")
    async with working(flows_dsn, flows) as chancy:
        found = await (await chancy.push(flow)).result(10)
    assert found == {"absent": "default", "null": None}


async def test_a_signal_may_come_before_its_step_or_after_it(flows_dsn: str) -> None:
    flows = Workflows()
    flow = Workflow("ask").add(steps.mark.job(), "first").wait_for("approved", after="first")
    flow.add(steps.anything.job(From("approved", "by")), "last")
    async with working(flows_dsn, flows) as chancy:
        early = await chancy.push(Workflow("e").include(flow, "x"))
        assert await early.signal("x/approved", {"by": "eve"})
        assert await early.result(10) == "eve"
        late = await chancy.push(flow)

        async def waits() -> bool:
            one = await late.step("approved")
            return one is not None and one.state is StepState.AWAITING_SIGNAL

        await eventually(waits)
        with pytest.raises(PushError, match="no step 'first' that waits"):
            await late.signal("first")
        assert await late.signal("approved", {"by": "bob"})
        assert not await late.signal("approved", {"by": "mallory"})
        assert await late.result(10) == "bob"
        with pytest.raises(PushError, match="there is no workflow"):
            await flows.reference(chancy, UUID(int=1)).signal("approved")


async def test_a_workflow_is_part_of_the_callers_transaction(flows_dsn: str) -> None:
    flows = Workflows()
    async with working(flows_dsn, flows) as chancy:
        undone: list[WorkflowReference] = []

        async def undo() -> None:
            async with chancy.transaction() as tx:
                undone.append(await chancy.push(chain("a", steps.mark.job()), within=tx))
                raise RuntimeError("undone")

        with pytest.raises(RuntimeError, match="undone"):
            await undo()
        async with chancy.transaction() as tx:
            done = await chancy.push(chain("a", steps.mark.job()), within=tx)
        assert await done.result(10) == "mark"
        assert await undone[0].get() is None
        with psycopg.connect(flows_dsn) as connection:
            sync = chancy.sync_push(chain("b", steps.mark.job()), within=connection)
            connection.commit()
        assert await sync.result(10) == "mark"

        def push() -> tuple[Any, WorkflowState, WorkflowRecord | None]:
            with chancy:
                own = chancy.sync_push(chain("c", steps.mark.job()))
                return own.sync_result(10), own.sync_wait(10), own.sync_get()

        result, state, record = await asyncio.to_thread(push)
        assert (result, state) == ("mark", WorkflowState.SUCCEEDED)
        assert record is not None
        assert record.state is WorkflowState.SUCCEEDED


async def test_a_workflow_is_refused_without_the_plugin() -> None:
    chancy = Chancy("postgresql://nowhere/nothing", no_default_plugins=True)
    with pytest.raises(PushError, match="no plugin of this application pushes a Workflow"):
        await chancy.push(chain("a", steps.mark.job()))


async def test_a_workflow_is_no_job_of_a_bulk_push() -> None:
    chancy = Chancy(broker=MemoryBroker())
    many: list[Any] = [chain("a", steps.mark.job())]
    async with chancy:
        with pytest.raises(PushError, match="a Workflow is not a job: push it with push"):
            await chancy.push_many(many)


async def test_the_same_workflow_is_pushed_once(flows_dsn: str) -> None:
    flows = Workflows()
    flow = chain("a", steps.mark.job())
    async with working(flows_dsn, flows) as chancy:
        first = await chancy.push(flow)
        assert await first.result(10) == "mark"
        again = await chancy.push(flow)
        assert again == first
        assert await again.result(10) == "mark"
        assert [one.id for one in await flows.find(chancy)] == [flow.id]
        assert await flows.find(chancy, WorkflowFilter(name="b")) == []
        wanted = WorkflowFilter(name="a", states=[WorkflowState.SUCCEEDED], limit=5)
        assert len(await flows.find(chancy, wanted)) == 1
    assert steps.ran == ["mark"]


async def test_waiting_ends_when_the_time_is_up(flows_dsn: str) -> None:
    flows = Workflows()
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(Workflow("w").wait_for("never"))
        with pytest.raises(WaitTimeout, match="is running after"):
            await reference.wait(0.1)
        with pytest.raises(WaitTimeout, match="is not there"):
            await flows.reference(chancy, UUID(int=7)).wait(0.1)
        waiters = [asyncio.create_task(reference.result(10)) for _ in range(20)]
        await asyncio.sleep(0)
        await reference.signal("never", 5)
        assert await asyncio.gather(*waiters) == [5] * 20
    assert ask(flows_dsn, "select id from chancy.awaited where id = %s", [reference.id]) == []


async def test_steps_wait_for_their_time_and_keep_their_settings(flows_dsn: str) -> None:
    flows = Workflows()
    job = steps.mark.job().with_delay(3600).with_priority(7).with_meta(shop={"a": 1})
    flow = Workflow("w").add(steps.mark.job(), "first").add(job, "later", after="first")
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)

        async def scheduled() -> bool:
            one = await reference.step("later")
            return one is not None and one.state is StepState.SCHEDULED

        await eventually(scheduled)
        later = present(await reference.step("later"))
        assert later.job_id is not None
        stored = present(await chancy.get_job(later.job_id))
        assert (stored.priority, stored.meta["shop"]) == (7, {"a": 1})
        await chancy.run_now(later.job_id)
        assert await reference.result(10) == "later"


async def test_two_workers_and_queues_without_history(flows_dsn: str) -> None:
    flows, others = Workflows(), Workflows()
    plain = Queue(name="async", executor="async", keep_finished=False)
    flow = chord("c", [steps.double.job(n) for n in range(200)], steps.total.job(Each()))
    async with working(flows_dsn, flows, queue=plain) as chancy, working(flows_dsn, others):
        assert await (await chancy.push(flow)).result(30) == 2 * sum(range(200))


async def test_an_application_without_postgres_is_refused() -> None:
    from chancy import ConfigurationError
    from chancy.testing.memory import MemoryBroker

    flows = Workflows()
    async with Chancy(broker=MemoryBroker(), plugins=[flows]) as chancy:
        with pytest.raises(ConfigurationError, match="workflows are kept in Postgres"):
            await chancy.push(chain("a", steps.mark.job()))

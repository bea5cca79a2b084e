"""The limits of one turn of the services; later turns do the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from chancy import Chancy
from chancy.clock import SystemClock
from chancy.plugins.workflow import Workflow, Workflows, WorkflowState
from chancy.plugins.workflow.sweep import WorkflowSweep
from chancy.plugins.workflow.timers import SignalTimeouts
from chancy.testing.clock import ManualClock
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import sweep_of
from tests.support.sql import ask
from tests.support.waiting import eventually

FLOWS = Workflows()
#: Workflows that a turn has to handle.
COUNT = 7
OLD = "update chancy.workflows set state = 4, finished_at = now() - interval '9 days'"


async def test_a_turn_rings_so_many_timers(flows_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chancy.plugins.workflow.timers.BATCH", 2)
    monkeypatch.setattr("chancy.plugins.workflow.timers._MOST_BATCHES", 2)
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        for _ in range(COUNT):
            await chancy.push(Workflow("w").wait_for("go", timeout_s=3600, default=1))
        ask(flows_dsn, "update chancy.workflows_timers set due_at = now()")
        timers = SignalTimeouts(chancy.broker)
        assert [await timers.turn() for _ in range(3)] == [4, 3, 0]
        ended = await FLOWS.find(chancy)
    assert {one.state for one in ended} == {WorkflowState.SUCCEEDED}


async def test_a_turn_forgets_so_many_workflows(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugin.tracking.sweep.BATCH", 2)
    monkeypatch.setattr("chancy.plugin.tracking.sweep.MAX_PURGES", 2)
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        for _ in range(COUNT):
            await chancy.push(Workflow("w").add(steps.mark.job(), "a"))
        ask(flows_dsn, OLD)
        sweep = sweep_of(chancy, 8)
        assert [await sweep.purge() for _ in range(3)] == [4, 3, 0]


@pytest.mark.parametrize("leading", [True, False])
async def test_every_worker_purges_until_nothing_is_left(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch, leading: bool
) -> None:
    """The leader may lack the plugin."""
    monkeypatch.setattr("chancy.plugin.tracking.sweep.BATCH", 2)
    monkeypatch.setattr("chancy.plugin.tracking.sweep.MAX_PURGES", 2)
    monkeypatch.setattr(WorkflowSweep, "check_s", 0.01)
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        for _ in range(COUNT):
            await chancy.push(Workflow("w").add(steps.mark.job(), "a"))
        ask(flows_dsn, OLD)
        runtime: Any = SimpleNamespace(clock=SystemClock(), leader=SimpleNamespace(leading=leading))
        serving = asyncio.create_task(sweep_of(chancy, 8).serve(runtime, 0.1))
        try:
            await eventually(lambda: not ask(flows_dsn, "select id from chancy.workflows"))
        finally:
            serving.cancel()
            await asyncio.wait([serving])


async def test_a_new_leader_keeps_no_pause_of_another_worker(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most leaders are elected after their first sweep, and outcomes would wait for a minute."""
    clock, done = ManualClock(), list[str]()

    def noted(part: str) -> Callable[[WorkflowSweep], Awaitable[int]]:
        async def note(_: WorkflowSweep) -> int:
            done.append(part)
            return 0

        return note

    async def after(seconds: float) -> list[str]:
        await eventually(lambda: clock.sleepers)
        done.clear()
        clock.advance(seconds)
        await eventually(lambda: clock.sleepers)
        return done

    for part in ("ring", "turn", "purge"):
        monkeypatch.setattr(WorkflowSweep, part, noted(part))
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        runtime: Any = SimpleNamespace(clock=clock, leader=SimpleNamespace(leading=False))
        serving = asyncio.create_task(sweep_of(chancy, clock=clock).serve(runtime, 5.0))
        assert await after(30) == []
        runtime.leader.leading = True
        assert await after(1) == ["ring"]
        assert await after(5) == ["ring", "turn"]
        assert await after(295) == ["ring", "turn", "purge"]
        serving.cancel()
        await asyncio.wait([serving])


async def test_a_turn_ends_so_many_workflows(
    flows_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.plugins.workflow.sweep._TURNED", 2)
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        for _ in range(COUNT):
            await chancy.push(Workflow("w").wait_for("never"))
        # As if their last running steps had ended while another one failed.
        ask(flows_dsn, "update chancy.workflows set state = 3, failed = 1")
        sweep = sweep_of(chancy)
        failed = "select count(*) from chancy.workflows where state = 5"
        counts: list[int] = []
        for _ in range(4):
            await sweep.turn()
            counts += ask(flows_dsn, failed)[0]
    assert counts == [2, 4, 6, 7]

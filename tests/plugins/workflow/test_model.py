"""Random workflows match a pure model, also if the hook fails now and then."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chancy import Chancy, Settlement
from chancy.broker.transaction import Transaction
from chancy.clock import SystemClock
from chancy.plugins.workflow import OnFailure, Workflows, WorkflowState
from chancy.plugins.workflow.outcomes import StepOutcomes
from chancy.plugins.workflow.sweep import WorkflowSweep
from tests.plugins.workflow import model, steps
from tests.plugins.workflow.running import working
from tests.support.sql import ask
from tests.support.waiting import eventually


class Flaky(Workflows):
    """A fifth of its hook calls fail after they have written; the service repairs that."""

    def __init__(self, seed: int) -> None:
        super().__init__(sweep_s=0.05)
        self.random = random.Random(seed)

    async def settling(self, tx: Transaction, batch: Sequence[Settlement]) -> None:
        await super().settling(tx, batch)
        if self.random.random() < 0.2:
            await tx.fetch("select 1 / 0")


async def settled(dsn: str, chancy: Chancy) -> None:
    """Wait until no job is left, and all outcomes are reported."""
    await eventually(lambda: not ask(dsn, "select id from chancy.jobs"))
    sweep = WorkflowSweep(chancy.broker, SystemClock(), StepOutcomes(), keep_days=None)
    while await sweep.turn():
        pass


async def run(dsn: str, graphs: Sequence[model.Graph], flows: Workflows) -> None:
    async with working(dsn, flows) as chancy:
        for graph in graphs:
            steps.ran.clear()
            steps.failing = {model.name(at) for at, node in enumerate(graph) if node.fails}
            reference = await chancy.push(model.described(graph))
            state = await reference.wait(20)
            await settled(dsn, chancy)
            assert await reference.wait(20) is state, "a final state is final"
            states = {one.name: one.state.value for one in await reference.steps()}
            ran = list(steps.ran)
            model.check_order(graph, [one for one in ran if not one.startswith("undo ")], states)
            model.check_ran(graph, ran, states)
            if not model.must_fail(graph):
                assert state is WorkflowState.SUCCEEDED
            else:
                assert state is model.end_of(graph, states)
            if state is WorkflowState.SUCCEEDED:
                model.check_whole(graph, ran, states)
            elif state is WorkflowState.COMPENSATED:
                model.check_undone(graph, ran, states)
            else:
                assert state is WorkflowState.FAILED
                steps.failing.clear()
                await reference.retry()
                assert await reference.wait(20) is WorkflowState.SUCCEEDED
                again = steps.ran[len(ran) :]
                assert len(set(again)) == len(again)
                done = {one for one, was in states.items() if was in ("succeeded", "ignored")}
                assert {*again} | done == {*map(model.name, range(len(graph)))}
                assert not done & set(again)


@pytest.mark.parametrize("flaky", [False, pytest.param(True, marks=pytest.mark.chaos)])
@given(graphs=st.lists(model.graphs(), min_size=4, max_size=4), seed=st.integers(0, 1000))
@settings(
    max_examples=3,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_random_workflows(
    flows_dsn: str, flaky: bool, graphs: list[model.Graph], seed: int
) -> None:
    await run(flows_dsn, graphs, Flaky(seed) if flaky else Workflows())


def test_the_model_knows_failures() -> None:
    graph = [model.Node((), OnFailure.FAIL, True, False)]
    assert model.must_fail(graph)


@pytest.mark.parametrize("state", ["ignored", "failed", "succeeded"])
def test_the_model_knows_what_can_never_have_ended(state: str) -> None:
    """A step that never ran, after a failed one or parallel to it."""
    bad = model.Node((), OnFailure.FAIL, True, False)
    for after in ((0,), ()):
        graph = [bad, model.Node(after, OnFailure.IGNORE, False, False)]
        model.check_ran(graph, ["n0"], {"n0": "failed", "n1": "waiting"})
        with pytest.raises(AssertionError):
            model.check_ran(graph, ["n0"], {"n0": "failed", "n1": state})

"""``chancy workflow``, for an application without code."""

from __future__ import annotations

from uuid import UUID

import pytest

from chancy import Chancy
from chancy.plugins.workflow import From, Workflow, Workflows
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import working
from tests.support.command import Answer, inside
from tests.support.sql import ask

FLOWS = Workflows()
NOBODY = str(UUID(int=9))


def flow_(dsn: str, *words: object, code: int = 0) -> Answer:
    return inside("workflow", *words, code=code, dsn=dsn, plugins="chancy.workflows")


@pytest.fixture
async def failed(flows_dsn: str) -> str:
    """The id of a workflow that has failed."""
    steps.failing.add("bad")
    flow = (
        Workflow("shop").add(steps.number.job(1), "one").add(steps.once.job(), "bad", after="one")
    )
    flow.add(steps.anything.job(From("bad")), "odd <name> & [x]").wait_for("go")
    async with working(flows_dsn, FLOWS) as chancy:
        reference = await chancy.push(flow)
        await reference.wait(10)
    return str(reference.id)


def test_a_workflow_is_listed_and_shown(flows_dsn: str, failed: str) -> None:
    listed = flow_(flows_dsn, "list")
    assert failed in listed.out
    assert "step bad has failed" in listed.out
    (one,) = flow_(flows_dsn, "list", "--state", "failed", "--name", "shop", "--json").json
    assert (one["id"], one["state"], one["steps"]) == (failed, "failed", 4)
    assert flow_(flows_dsn, "list", "--state", "running", "--json").json == []
    assert flow_(flows_dsn, "list", "--before", failed, "--json").json == []
    shown = flow_(flows_dsn, "show", failed)
    assert "is failed: 25% of 4 steps are done" in shown.out
    assert "builtins.ValueError: bad fails" in shown.out
    data = flow_(flows_dsn, "show", failed, "--json").json
    assert data["progress"]["failed"] == 1
    assert [step["state"] for step in data["steps"]] == [
        "succeeded", "failed", "waiting", "waiting",
    ]  # fmt: skip
    assert data["steps"][0]["result"] == 1


def test_a_workflow_is_drawn(flows_dsn: str, failed: str) -> None:
    drawn = flow_(flows_dsn, "export", failed).out
    assert drawn.startswith("flowchart TD\n")
    assert "s0 --> s1" in drawn
    assert 's2["odd #60;name#62; #38; #91;x#93;<br/>waiting"]:::waiting' in drawn
    assert "classDef failed fill:#ea9999" in drawn
    dot = flow_(flows_dsn, "export", failed, "--format", "dot").out
    assert dot.startswith('digraph "shop" {')
    assert "s1 -> s2;" in dot
    data = flow_(flows_dsn, "export", failed, "--format", "json").json
    assert data["steps"][0]["next"] == ["bad"]


def test_a_workflow_is_retried_signalled_and_cancelled(flows_dsn: str, failed: str) -> None:
    assert flow_(flows_dsn, "retry", failed).out == f"1 steps of workflow {failed} are run again\n"
    assert "is running, and cannot be retried" in flow_(flows_dsn, "retry", failed, code=1).err
    sent = flow_(flows_dsn, "signal", failed, "go", "--payload", '{"by": "eve"}')
    assert sent.out == "signal go is sent\n"
    assert flow_(flows_dsn, "signal", failed, "go", "--json").json == {"sent": False}
    assert "is not JSON" in flow_(flows_dsn, "signal", failed, "go", "--payload", "{", code=2).err
    assert flow_(flows_dsn, "cancel", failed).out == f"workflow {failed} is cancelled\n"
    assert ask(flows_dsn, "select id from chancy.jobs") == []
    again = flow_(flows_dsn, "retry", failed, "--from", "one", "--json").json
    assert again == {"steps": 3}


@pytest.mark.parametrize("words", [["show"], ["export"], ["cancel"], ["retry"]])
def test_one_that_is_not_there(flows_dsn: str, words: list[str]) -> None:
    said = flow_(flows_dsn, *words, NOBODY, code=1)
    assert NOBODY in said.err


async def test_the_panel_gives_the_newest(flows_dsn: str, failed: str) -> None:
    (panel,) = FLOWS.panels()
    async with Chancy(flows_dsn, plugins=[FLOWS]) as chancy:
        (row,) = await panel.rows(chancy)
    assert (row["id"], row["state"]) == (failed, "failed")

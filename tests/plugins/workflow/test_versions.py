"""Steps whose functions have versions of their arguments."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.fernet import Fernet

from chancy import Chancy, Plugin, current_job, job
from chancy.plugins.encryption import Encryption
from chancy.plugins.workflow import (
    Each,
    From,
    OnFailure,
    StepState,
    Workflow,
    Workflows,
    WorkflowState,
)
from tests.plugins.workflow.running import working
from tests.support.sql import ask

FLOWS = Workflows()
apps: list[Chancy] = []
failing: set[str] = set()
undone: list[int] = []


def older(arguments: dict[str, Any], version: int) -> dict[str, Any]:
    return {**arguments, "upgraded_from": version}


@job(queue="async", max_attempts=1, version=2, upgrade=older)
async def pay(amount: int = 5, more: list[int] | None = None, upgraded_from: int = 0) -> int:
    assert not upgraded_from
    if (name := current_job().meta["workflow"]["step"]) in failing:
        raise ValueError(name)
    return amount + sum(more or [])


@job(queue="async", version=2, upgrade=older)
async def refund(amount: int, upgraded_from: int = 0) -> None:
    undone.append(upgraded_from or amount)


@job(queue="async")
async def extend() -> None:
    await FLOWS.extend(apps[0], Workflow("more").add(pay.job(7), "added"))


@pytest.mark.parametrize("plugins", [[], [Encryption({"k": Fernet.generate_key().decode()})]])
async def test_steps_have_the_version_of_their_arguments(
    flows_dsn: str, plugins: list[Plugin]
) -> None:
    failing.clear()
    undone.clear()
    flow = Workflow("w").wait_for("go", gives=int).add(extend.job(), "extend")
    flow.add(pay.job(), "default").add(pay.job(From("go"), more=Each("default")), "sum")
    flow.add(pay.job(2), "paid", after="sum", undo=refund.job(From("sum")))
    flow.add(pay.job(), "last", after="paid", on_failure=OnFailure.COMPENSATE)
    async with working(flows_dsn, FLOWS, *plugins) as chancy:
        apps[:] = [chancy]
        reference = await chancy.push(flow)
        await reference.signal("go", 3)
        assert await reference.wait(10) is WorkflowState.SUCCEEDED
        assert {one.state for one in await reference.steps() if one.undoes is None} == {
            StepState.SUCCEEDED
        }
        failing.add("last")
        assert await reference.retry("last") == 1
        assert await reference.wait(10) is WorkflowState.COMPENSATED
    assert undone == [8]
    if not plugins:
        stored = "select arguments #>> '{$chancy,version}' from chancy.workflows_steps"
        found = ask(flows_dsn, f"{stored} where func ~ 'pay|refund'")
        assert {version for (version,) in found} == {"2"}

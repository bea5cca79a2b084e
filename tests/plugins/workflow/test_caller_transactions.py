"""Calls about workflows within transactions of the caller."""

from __future__ import annotations

import asyncio
from uuid import UUID

import psycopg
import pytest

from chancy import Chancy, PushError, job
from chancy.plugins.workflow import Workflow, Workflows
from chancy.plugins.workflow.outcomes import SQL
from tests.plugins.workflow import steps
from tests.plugins.workflow.running import stopped, working
from tests.support.waiting import eventually

IDLE = "show idle_in_transaction_session_timeout"


async def test_a_signal_leaves_the_settings_of_the_transaction_alone(flows_dsn: str) -> None:
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        flow = Workflow("w").wait_for("go").add(steps.mark.job(), "end", after="go")
        reference = await chancy.push(flow)
        one = (await chancy.push(Workflow("w").add(steps.mark.job(), "a"))).id
    with psycopg.connect(flows_dsn) as connection:
        cursor = psycopg.RawCursor(connection)
        cursor.execute(IDLE)
        before = cursor.fetchall()
        cursor.execute(SQL.statement("signal", "chancy").encode(), [reference.id, "go", "1"])
        assert cursor.fetchall() == [("sent",)]
        cursor.execute(IDLE)
        assert cursor.fetchall() == before
        # A settlement limits it, because a process that hangs in one holds locks that others need.
        ends = [[one], ["a"], [1], [UUID(int=1)], [4], None, None, None, False, 100, None]
        cursor.execute(SQL.statement("advance", "chancy").encode(), ends)
        cursor.execute(IDLE)
        assert cursor.fetchall() == [("10s",)]


@job(queue="async", max_attempts=1)
async def stubborn() -> str:
    """Stops slowly; the second run succeeds."""
    if "stopping" in steps.ran:
        return "done"
    try:
        steps.ran.append("began")
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        steps.ran.append("stopping")
        await steps.gate.wait()
        raise
    return "never"


async def test_cancelled_steps_are_retried_once_they_stopped(flows_dsn: str) -> None:
    flows = Workflows()
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(Workflow("w").add(stubborn.job(), "slow"))
        await eventually(lambda: "began" in steps.ran)
        assert await reference.cancel()
        await eventually(lambda: "stopping" in steps.ran)
        with pytest.raises(PushError, match="some of these steps still run"):
            await reference.retry()
        steps.gate.set()

        await stopped(flows_dsn, 1)
        assert await reference.retry() == 1
        assert await reference.result(10) == "done"

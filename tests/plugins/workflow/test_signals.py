"""Signals from programs: typed, within transactions, with and without an event loop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import psycopg
import pytest
from pydantic import BaseModel

from chancy import Chancy, JobCancelled, PushError, job
from chancy.plugins.workflow import From, Workflow, WorkflowFailed, Workflows
from tests.plugins.workflow.running import working
from tests.support.sql import ask


@dataclass
class Approval:
    by: str
    at: datetime


class Choice(BaseModel):
    what: str


@job(queue="async", max_attempts=1)
async def act(approval: Approval) -> str:
    assert isinstance(approval, Approval)
    assert isinstance(approval.at, datetime)
    return f"{approval.by} {approval.at:%Y}"


@job(queue="async")
async def act_later(approval: Approval | None) -> str:
    return "nobody" if approval is None else approval.by


@job(queue="async")
async def chosen(choice: Choice) -> str:
    return choice.what


AT = datetime(2031, 2, 3, tzinfo=UTC)


def waiting(name: str = "w") -> Workflow:
    return Workflow(name).wait_for("approved", Approval).add(act.job(From("approved")), "act")


async def test_a_payload_comes_back_as_its_type(flows_dsn: str) -> None:
    flows = Workflows()
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(waiting())
        assert await flows.signal(chancy, reference.id, "approved", Approval("eve", AT))
        assert not await flows.signal(chancy, reference.id, "approved", Approval("bob", AT))
        assert await reference.result(10) == "eve 2031"
        flow = Workflow("w").wait_for("choice", Choice).add(chosen.job(From("choice")), "end")
        reference = await chancy.push(flow)
        assert await reference.signal("choice", Choice(what="bus"))
        assert await reference.result(10) == "bus"


async def test_a_payload_that_does_not_fit_fails_the_step_that_takes_it(flows_dsn: str) -> None:
    flows = Workflows()
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(waiting())
        assert await reference.signal("approved", {"by": 3})
        with pytest.raises(WorkflowFailed, match="step act has failed"):
            await reference.result(10)


class Nothing:
    pass


async def test_a_payload_that_cannot_be_stored_is_refused(flows_dsn: str) -> None:
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        reference = await chancy.push(waiting())
        said = "the payload of signal 'approved'"
        with pytest.raises(PushError, match=f"^{said} cannot be stored as JSON: .* for Nothing"):
            await reference.signal("approved", Nothing())
        with pytest.raises(PushError, match=r"'approved'\[0\]"):
            await reference.signal("approved", [Approval("eve", AT)])
        assert ask(flows_dsn, "select name from chancy.workflows_signals") == []


async def test_the_payload_of_a_signal_is_validated_against_its_receiver(flows_dsn: str) -> None:
    flows = Workflows()
    wrong = Workflow("w").wait_for("go", Choice).add(act.job(From("go")), "act")
    ignored = Workflow("w").wait_for("go", Approval, on_failure="ignore")
    ignored.add(act.job(From("go")), "act")
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        with pytest.raises(PushError, match=r"is Approval, and step 'go' \(signal 'go'\) returns"):
            await chancy.push(wrong)
        with pytest.raises(PushError, match="returns None when its failure is ignored"):
            await chancy.push(ignored)
    with pytest.raises(PushError, match="the default of step 'go': Input should be"):
        Workflow("w").wait_for("go", Approval, timeout_s=1, default=None)


async def test_a_default_is_of_the_type_too(flows_dsn: str) -> None:
    flows = Workflows(sweep_s=0.1)
    given = Approval("default", AT)
    flow = Workflow("w").wait_for("go", Approval, timeout_s=0.05, default=given)
    flow.add(act_later.job(From("go")), "act")
    async with working(flows_dsn, flows) as chancy:
        assert await (await chancy.push(flow)).result(10) == "default"


def test_a_signal_is_given_without_an_event_loop_with_its_transaction(flows_dsn: str) -> None:
    flows = Workflows()
    with Chancy(flows_dsn, plugins=[flows]) as chancy:
        with psycopg.connect(flows_dsn) as connection:
            reference = chancy.sync_push(waiting(), within=connection)
        given = Approval("eve", AT)
        with psycopg.connect(flows_dsn) as connection:
            assert flows.sync_signal(chancy, reference.id, "approved", given, within=connection)
            assert not reference.sync_signal("approved", given, within=connection)
            connection.rollback()
        assert ask(flows_dsn, "select name from chancy.workflows_signals") == []
        assert ask(flows_dsn, "select id from chancy.jobs") == []
        with psycopg.connect(flows_dsn) as connection:
            assert reference.sync_signal("approved", given, within=connection)
        assert len(ask(flows_dsn, "select id from chancy.jobs")) == 1
        with psycopg.connect(flows_dsn) as connection:
            assert not reference.sync_signal("approved", given, within=connection)
            with pytest.raises(PushError, match="has no step 'other' that waits"):
                reference.sync_signal("other", within=connection)
            with pytest.raises(PushError, match="there is no workflow"):
                flows.sync_signal(chancy, uuid4(), "approved", within=connection)


async def test_a_signal_in_a_transaction_counts_with_it(flows_dsn: str) -> None:
    flows = Workflows()
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(waiting())
        connection = await psycopg.AsyncConnection.connect(flows_dsn)
        async with connection:
            await flows.signal(chancy, reference.id, "approved", {"by": 1}, within=connection)
            await connection.rollback()
        async with chancy.transaction() as tx:
            assert await reference.signal("approved", Approval("eve", AT), within=tx)
        assert await reference.result(10) == "eve 2031"


async def test_a_workflow_that_was_cancelled_takes_no_signal(flows_dsn: str) -> None:
    flows = Workflows()
    async with Chancy(flows_dsn, plugins=[flows]) as chancy:
        reference = await chancy.push(waiting())
        assert await reference.cancel()
        with pytest.raises(PushError, match="has ended"):
            await reference.signal("approved", Approval("eve", AT))
        with pytest.raises(JobCancelled):
            await reference.result(10)


async def test_a_signal_that_comes_too_late_is_refused(flows_dsn: str) -> None:
    """A signal after the timeout is refused; a step that runs again waits anew."""
    flows = Workflows(sweep_s=0.05)
    flow = Workflow("w").wait_for("go", timeout_s=0.01)
    async with working(flows_dsn, flows) as chancy:
        reference = await chancy.push(flow)
        await reference.wait(10)
        with pytest.raises(PushError, match="step 'go' has ended without it"):
            await reference.signal("go", 1)
        ask(flows_dsn, "update chancy.workflows_steps set delay_s = 60")
        assert await reference.retry("go") == 1
        assert await reference.signal("go", 2)
        assert not await reference.signal("go", 3)
        assert await reference.result(10) == 2
        assert not await reference.signal("go", 3)

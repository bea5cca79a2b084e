"""Waits for batches and workflows: how they are woken, and what they leave behind."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from chancy import Chancy, JobError, WaitTimeout
from chancy.errors import BrokerUnavailable
from chancy.plugins.batch import Batch, Batches, BatchReference, BatchState
from chancy.plugins.workflow import Workflow, WorkflowReference, Workflows, WorkflowState
from tests.plugins.batch import jobs
from tests.plugins.workflow.running import ASYNC
from tests.support.sql import ask
from tests.support.waiting import eventually

Group = BatchReference | WorkflowReference


class Push(Protocol):
    """Pushes a group, in a transaction if one is given."""

    def __call__(self, chancy: Chancy, within: object | None = None) -> Awaitable[Group]: ...


AWAITED = "select waiters from chancy.awaited"
LISTENING = """
select pid from pg_stat_activity
where application_name = 'chancy waiting' and datname = current_database()
"""


async def _batch(chancy: Chancy, within: object | None = None) -> Group:
    later = jobs.act.job.with_delay(3600)(1)
    return await Batches().push(chancy, Batch(name="b"), [later], within=within)


async def _workflow(chancy: Chancy, within: object | None = None) -> Group:
    later = jobs.act.job.with_delay(3600)(1)
    return await chancy.push(Workflow("w").add(later, "one"), within=within)


@pytest.fixture(params=["batch", "workflow"])
def kind(request: pytest.FixtureRequest, batches_dsn: str, flows_dsn: str) -> tuple[str, Push]:
    """A database with the tables of a kind of groups, and a function that pushes one."""
    if request.param == "batch":
        return batches_dsn, _batch
    return flows_dsn, _workflow


def application(dsn: str) -> Chancy:
    return Chancy(dsn, queues=[ASYNC], plugins=[Batches(), Workflows()])


@pytest.fixture
def only_notified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits do not poll by themselves."""
    for pause in ("_FIRST_POLL_S", "_POLL_S"):
        monkeypatch.setattr(f"chancy.results.waiter.{pause}", 3_600.0)
    monkeypatch.setattr("chancy.plugin.tracking.groups.GroupWaiter.listening_s", 3_600.0)


def waiters(dsn: str) -> Callable[[], list[int]]:
    return lambda: [count for (count,) in ask(dsn, AWAITED)]


async def test_a_wait_for_a_pushed_group_that_is_gone_raises(kind: tuple[str, Push]) -> None:
    dsn, push = kind
    async with application(dsn) as chancy:
        group = await push(chancy)
        begun = asyncio.create_task(group.wait())
        await eventually(lambda: ask(dsn, LISTENING))
        ask(dsn, f"delete from chancy.{'batches' if group.kind == 'batch' else 'workflows'}")
        plugin = Batches() if group.kind == "batch" else Workflows()
        by_id = plugin.reference(chancy, group.id, stored=True)
        with chancy:
            sync_wait = group.sync_wait
            async with asyncio.timeout(30):
                for wait in (lambda: begun, group.wait, by_id.wait, lambda: to_thread(sync_wait)):
                    with pytest.raises(JobError, match=f"{group.id} is gone, .* was purged"):
                        await wait()
        with pytest.raises(WaitTimeout, match="is not there"):
            await plugin.reference(chancy, group.id).wait(0)


async def test_a_group_is_waited_for_before_its_commit(kind: tuple[str, Push]) -> None:
    dsn, push = kind
    async with application(dsn) as chancy:
        async with chancy.transaction() as transaction:
            group = await push(chancy, transaction)
            waiting = asyncio.create_task(group.wait(30))
            await eventually(lambda: ask(dsn, LISTENING))
        assert await group.cancel()
        assert await waiting in (BatchState.CANCELLED, WorkflowState.CANCELLED)


@pytest.mark.usefixtures("only_notified")
async def test_a_wait_that_gives_up_keeps_the_notifications_of_other_processes(
    kind: tuple[str, Push],
) -> None:
    dsn, push = kind
    async with application(dsn) as chancy, application(dsn) as other:
        group = await push(chancy)
        patient = asyncio.create_task(group.wait(30))
        hasty = asyncio.create_task(type(group)(group.id, other).wait(30))
        await eventually(lambda: waiters(dsn)() == [2])
        await eventually(lambda: len(ask(dsn, LISTENING)) == 2)
        hasty.cancel()
        await eventually(lambda: waiters(dsn)() == [1])
        await group.cancel()
        assert await patient in (BatchState.CANCELLED, WorkflowState.CANCELLED)
        await eventually(lambda: waiters(dsn)() == [])


async def test_a_wait_survives_the_end_of_all_sessions(kind: tuple[str, Push]) -> None:
    dsn, push = kind
    async with application(dsn) as chancy:
        group = await push(chancy)
        waiting = asyncio.create_task(group.wait(30))
        await eventually(lambda: ask(dsn, LISTENING))
        ask(
            dsn,
            "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()",
        )
        await eventually(lambda: ask(dsn, LISTENING))
        assert not waiting.done()
        await group.cancel()
        assert await waiting in (BatchState.CANCELLED, WorkflowState.CANCELLED)


async def test_closing_the_application_ends_waits_and_leaves_nothing(
    kind: tuple[str, Push],
) -> None:
    dsn, push = kind
    async with application(dsn) as chancy:
        groups = [await push(chancy) for _ in range(3)]
        waiting = [asyncio.create_task(group.wait(30)) for group in groups]
        await eventually(lambda: waiters(dsn)() == [1] * 3)
        await eventually(lambda: len(ask(dsn, LISTENING)) == 1)
    for one in waiting:
        with pytest.raises(BrokerUnavailable, match="closed during a wait"):
            await one
    assert ask(dsn, AWAITED) == []
    await eventually(lambda: not ask(dsn, LISTENING))
    async with application(dsn) as chancy:
        with pytest.raises(WaitTimeout, match=r"is running after 0\.0 s"):
            await type(groups[0])(groups[0].id, chancy).wait(0)
    assert ask(dsn, AWAITED) == []


async def test_sync_waits_leave_nothing(kind: tuple[str, Push]) -> None:
    dsn, push = kind
    async with application(dsn) as chancy:
        group = await push(chancy)

    def wait() -> None:
        with application(dsn) as chancy, pytest.raises(WaitTimeout, match="is running after"):
            type(group)(group.id, chancy).sync_wait(0.6)

    await to_thread(wait)
    await eventually(lambda: ask(dsn, LISTENING) == [])

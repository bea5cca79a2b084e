"""Jobs that end themselves in a transaction of each library, together with what they write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from chancy import Chancy, Queue, State, Worker, current_job, job
from chancy.errors import LeaseLost
from chancy.plugins.retry import Retries
from chancy.retry import Constant
from tests.integration.within.stacks import ASYNC_STACKS, SYNC_STACKS
from tests.support.waiting import eventually

QUEUES = [Queue(name="async", executor="async"), Queue(name="thread", executor="thread")]
lost: list[str] = []


class Undo(Exception):
    """Ends a transaction without a commit."""


def take_away(dsn: str) -> None:
    """Give the lease of every job to somebody else."""
    with psycopg.connect(dsn) as session:
        session.execute("update chancy.jobs set lease = gen_random_uuid()")


@job(queue="async", max_attempts=2)
async def end_async(dsn: str, stack: str, how: str) -> str:
    """``how``: the transaction of the first attempt is undone, or its lease is lost."""
    this = current_job()
    async with ASYNC_STACKS[stack](dsn) as opened, opened.transaction():
        await opened.execute(f"insert into effects values ('{how} {this.attempt}')")
        if how == "lost":
            take_away(dsn)
        try:
            await this.complete_in(opened.within, "inside")
        except LeaseLost:
            lost.append(stack)
            raise
        if how.startswith("undone") and this.attempt == 1:
            raise Undo
    return "outside"


@job(queue="thread", max_attempts=2)
def end_sync(dsn: str, stack: str, how: str) -> str:
    this = current_job()
    with SYNC_STACKS[stack](dsn) as opened, opened.transaction():
        opened.execute(f"insert into effects values ('{how} {this.attempt}')")
        if how == "lost":
            take_away(dsn)
        try:
            this.sync_complete_in(opened.within, "inside")
        except LeaseLost:
            lost.append(stack)
            raise
        if how.startswith("undone") and this.attempt == 1:
            raise Undo
    return "outside"


@pytest.fixture
async def running(dsn: str) -> AsyncIterator[tuple[Chancy, Worker]]:
    lost.clear()
    with psycopg.connect(dsn) as session:
        session.execute("create table effects (what text, at serial)")
    plugins = [Retries(Constant(0.01))]
    async with (
        Chancy(dsn, queues=QUEUES, plugins=plugins, pool_size=3) as chancy,
        Worker(chancy) as worker,
    ):
        yield chancy, worker


def effects(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as session:
        rows = session.execute("select what from effects order by at").fetchall()
    return [what for (what,) in rows]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("function", "stacks"),
    [
        pytest.param(end_async, list(ASYNC_STACKS), id="async"),
        pytest.param(end_sync, list(SYNC_STACKS), id="sync"),
    ],
)
async def test_writes_of_a_job_commit_with_its_completion(
    dsn: str, running: tuple[Chancy, Worker], function: Any, stacks: list[str]
) -> None:
    chancy, worker = running
    for number, stack in enumerate(stacks):
        written = effects(dsn)
        done = await (await chancy.push(function.job(dsn, stack, f"kept {number}"))).wait(20)
        assert (done.state, done.result, done.attempt) == (State.SUCCEEDED, "inside", 1), stack
        # Undone, the job has no end but that of its function: it raised, and is tried again.
        done = await (await chancy.push(function.job(dsn, stack, f"undone {number}"))).wait(20)
        assert (done.state, done.result, done.attempt) == (State.SUCCEEDED, "inside", 2), stack
        assert [error["types"][0].rpartition(".")[2] for error in done.errors] == ["Undo"], stack
        written += [f"kept {number} 1", f"undone {number} 2"]
        assert effects(dsn) == written, stack
        # Another has it: nothing is written, and whoever has it will end it.
        reference = await chancy.push(function.job(dsn, stack, "lost"))
        await eventually(lambda: worker.stale > number)  # noqa: B023
        found = await reference.get()
        assert found is not None
        assert (found.state, found.result) == (State.RUNNING, None), stack
        assert lost == stacks[: number + 1]
        assert effects(dsn) == written, stack

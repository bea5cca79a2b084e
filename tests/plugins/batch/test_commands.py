"""``chancy batch``, for an application without code; the contract of plugins."""

from __future__ import annotations

from uuid import UUID

import pytest

from chancy import Chancy, Plugin
from chancy.plugins.batch import Batch, Batches
from tests.contract.plugin.test_plugin import OnTables
from tests.plugins.batch import jobs as batch_jobs
from tests.plugins.batch.batching import working
from tests.plugins.batch.jobs import act, said
from tests.support.command import Answer, inside
from tests.support.sql import ask

BATCHES = Batches()
NOBODY = str(UUID(int=9))


class TestBatches(OnTables):
    @pytest.fixture
    def plugin(self) -> Plugin:
        return Batches()


def batch_(dsn: str, *words: object, code: int = 0) -> Answer:
    return inside("batch", *words, code=code, dsn=dsn, plugins="chancy.batches")


@pytest.fixture
async def failed(batches_dsn: str) -> str:
    """The id of a batch that has failed."""
    batch_jobs.failing.add(2)
    async with working(batches_dsn, BATCHES) as chancy:
        batch = Batch(name="shop", on_failure=said.job("on"), on_success=said.job("on"))
        reference = await BATCHES.push(chancy, batch, [act.job(n) for n in range(4)])
        await reference.wait(10)
    return str(reference.id)


def test_a_batch_is_listed_and_shown(batches_dsn: str, failed: str) -> None:
    listed = batch_(batches_dsn, "list")
    assert failed in listed.out
    assert "shop" in listed.out
    (one,) = batch_(batches_dsn, "list", "--state", "failed", "--name", "shop", "--json").json
    assert (one["id"], one["state"], one["total"]) == (failed, "failed", 4)
    assert batch_(batches_dsn, "list", "--state", "running", "--json").json == []
    assert batch_(batches_dsn, "list", "--before", failed, "--json").json == []
    shown = batch_(batches_dsn, "show", failed)
    assert "is failed: 100% of 4 jobs have ended, 1 failed, 0 cancelled" in shown.out
    data = batch_(batches_dsn, "show", failed, "--json").json
    assert [(one["on"], one["pushed_at"] is None) for one in data["callbacks"]] == [
        ("success", True), ("failure", False),
    ]  # fmt: skip
    ((bad,),) = ask(batches_dsn, "select id from chancy.finished_jobs where state = 5")
    assert data["bad"] == [{"id": str(bad), "state": "failed"}]
    assert str(bad) in shown.out


@pytest.fixture
async def running(batches_dsn: str) -> tuple[UUID, UUID]:
    """The ids of an open batch and of another one."""
    async with Chancy(batches_dsn, plugins=[BATCHES]) as chancy:
        first = await BATCHES.push(chancy, Batch(name="b", open=True), [act.job(1)])
        return first.id, (await BATCHES.push(chancy, Batch(name="b"), [act.job(1)])).id


def test_a_batch_is_cancelled(batches_dsn: str, running: tuple[UUID, UUID]) -> None:
    first, other = running
    assert "open" in batch_(batches_dsn, "list").out
    assert "is being cancelled" in batch_(batches_dsn, "cancel", first).out
    assert batch_(batches_dsn, "cancel", other, "--json").json == {"cancelled": True}
    assert ask(batches_dsn, "select state from chancy.batches") == [(6,), (6,)]
    assert batch_(batches_dsn, "cancel", first, "--json", code=1).json == {"cancelled": False}


def test_a_batch_that_is_not_there(batches_dsn: str) -> None:
    for command in ("show", "cancel"):
        answer = batch_(batches_dsn, command, NOBODY, code=1)
        assert NOBODY in answer.err
        assert answer.out == ""


async def test_the_panel_has_the_newest(batches_dsn: str, failed: str) -> None:
    (panel,) = BATCHES.panels()
    async with Chancy(batches_dsn, plugins=[BATCHES]) as chancy:
        (row,) = await panel.rows(chancy)
    assert (row["id"], row["failed"], row["pending"]) == (failed, 1, 0)

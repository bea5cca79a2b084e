"""Batches: jobs that belong together, and what is pushed when they have ended."""

from __future__ import annotations

from chancy.plugins.batch import Batch, Batches, BatchState, Progress
from tests.waiting import eventually
from tests.workflow.batch_jobs import act, ran, said
from tests.workflow.batching import execute, working


def callbacks(name: str = "b", *, open: bool = False) -> Batch:  # noqa: A002 - as the field
    return Batch(
        name=name,
        on_success=said.job("on"),
        on_failure=said.job("on"),
        on_finish=said.job("on"),
        open=open,
    )


async def called(dsn: str) -> list[str]:
    """The callbacks that ran, once nothing is left to run."""
    await eventually(lambda: not execute(dsn, "select id from chancy.jobs"))
    return sorted(one for one in ran if one.startswith("on "))


async def test_all_succeed(batches_dsn: str) -> None:
    batches = Batches()
    async with working(batches_dsn, batches) as chancy:
        reference = await batches.push(chancy, callbacks(), [act.job(n) for n in range(30)])
        assert await reference.finished(20) is BatchState.SUCCEEDED
        assert await called(batches_dsn) == ["on finish", "on success"]
        assert await reference.progress() == Progress(
            pending=0, succeeded=30, failed=0, cancelled=0
        )
        found = await reference.get()
    assert found is not None
    assert found.finished_at is not None
    assert execute(batches_dsn, "select * from chancy.batches_jobs") == []

"""What a running job says of its progress can be read while it runs, and afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chancy import Chancy, Queue, State, Worker
from tests.integration import progress_jobs as reporting
from tests.support.presence import present
from tests.support.sql import ask
from tests.support.waiting import eventually

#: How what jobs of each executor say reaches the worker is in its contract.
QUEUES = [Queue(name="thread", executor="thread"), Queue(name="async", executor="async")]


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn, queues=QUEUES, pool_size=3) as made:
        await made.delete_queue("default")
        yield made


async def test_progress_is_stored_while_a_job_runs_and_stays(
    chancy: Chancy, tmp_path: Path
) -> None:
    path = tmp_path / "go on"
    async with Worker(chancy, queues=["async"]):
        job = reporting.report_async.job(path=str(path)).with_queue("async")
        reference = await chancy.push(job)

        async def stored() -> object:
            found = present(await reference.get())
            return found.state is State.RUNNING and found.meta.get("progress")

        assert await eventually(stored) == {"fraction": 0.4, "text": "two of five", "attempt": 1}
        path.touch()
        done = await reference.wait(30)
    assert done.state is State.SUCCEEDED
    # It was said at the very end, and is stored with the settlement.
    assert done.meta["progress"] == {"fraction": 1.0, "text": "done", "attempt": 1}


async def test_a_job_whose_lease_is_lost_is_notified(
    chancy: Chancy, dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "why"
    async with Worker(chancy, queues=["thread"]) as worker:
        reference = await chancy.push(reporting.heed.job(path=str(path)).with_queue("thread"))

        async def reported() -> bool:
            found = await reference.get()
            return found is not None and "progress" in found.meta

        await eventually(reported)
        ask(dsn, "update chancy.jobs set lease = gen_random_uuid()")
        await eventually(path.exists)
        await eventually(lambda: "lost its lease" in path.read_text())
        await eventually(lambda: worker.stale == 1)
        assert caplog.text.count("lease_lost") == 1
        found = present(await reference.get())
        assert found.state is State.RUNNING

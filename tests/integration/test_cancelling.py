"""A running job that is cancelled: by `Chancy.cancel`, to its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

from chancy import Chancy, Queue, State, Worker
from chancy.broker.values import Cancellation
from tests.integration import stopping_jobs as winding
from tests.support.presence import present
from tests.support.waiting import eventually

#: How a request to stop reaches a job of each executor is in its contract.
QUEUES = [Queue(name="async", executor="async")]


async def test_it_is_cancelled_once_its_work_has_ended(dsn: str, tmp_path: Path) -> None:
    made = winding.wind_down_async.job(str(tmp_path))
    async with Chancy(dsn, queues=QUEUES) as chancy, Worker(chancy, queues=[made.queue]):
        running = await chancy.push(made)
        await eventually((tmp_path / "started").exists)
        assert await chancy.cancel(running.id) == {running.id: Cancellation.ASKED}
        await eventually((tmp_path / "asked").exists)
        found = present(await running.get())
        assert (found.state, found.stop_asked_at is None) == (State.RUNNING, False)
        # Asked again, as by each survey of the worker, it goes on with its cleanup.
        await chancy.cancel(running.id)
        (tmp_path / "may end").touch()
        assert (await running.wait(30)).state is State.CANCELLED
        assert (tmp_path / "ended").exists()


async def test_it_is_cancelled_while_its_worker_ends(dsn: str, tmp_path: Path) -> None:
    made = winding.wind_down_async.job(str(tmp_path))
    async with Chancy(dsn, queues=QUEUES) as chancy:
        worker = Worker(chancy, queues=[made.queue], shutdown_timeout_s=600.0)
        await worker.start()
        running = await chancy.push(made)
        await eventually((tmp_path / "started").exists)
        end = asyncio.create_task(worker.stop())
        await eventually(lambda: not worker.queues)
        try:
            await chancy.cancel(running.id)
            await eventually((tmp_path / "asked").exists)
        finally:
            (tmp_path / "may end").touch()
            await end
        assert (await running.wait(30)).state is State.CANCELLED

"""Jobs that stop the event loop of their worker."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from uuid import UUID

import pytest

from chancy import Chancy, Queue, State, Worker, job

_QUEUE = Queue("stopped", executor="async")
#: What the next run of `stop` does.
_stops: list[Callable[[], object]] = []


async def leave() -> None:
    sys.exit(5)


_tasks: set[asyncio.Task[None]] = set()


def leave_in_a_task() -> None:
    _tasks.add(asyncio.get_running_loop().create_task(leave()))


def leave_in_a_callback() -> None:
    asyncio.get_running_loop().call_soon(sys.exit, 5)


def stop_the_loop() -> None:
    asyncio.get_running_loop().stop()


def cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()


@job(queue="stopped")
async def stop() -> None:
    if _stops:
        _stops.pop()()
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.1)  # cleans up


@pytest.mark.parametrize("by", [leave_in_a_task, leave_in_a_callback, stop_the_loop, cancel_all])
def test_a_worker_whose_loop_is_stopped_ends_soon_and_its_jobs_run_again(
    dsn: str, by: Callable[[], object]
) -> None:
    pushed: list[UUID] = []

    async def serve() -> None:
        async with Chancy(dsn, queues=[_QUEUE]) as chancy, Worker(chancy, queues=["stopped"]):
            pushed.append((await chancy.push(stop.job())).id)
            await asyncio.sleep(600)

    async def serve_again() -> None:
        async with Chancy(dsn, queues=[_QUEUE]) as chancy, Worker(chancy, queues=["stopped"]):
            done = await chancy.wait_for(pushed[0], timeout_s=60)
            assert done.state is State.SUCCEEDED
            # A job that stops every worker has to end.
            assert done.crashes == 1

    _stops[:] = [by]
    began = time.monotonic()
    with pytest.raises((SystemExit, RuntimeError, asyncio.CancelledError)):
        asyncio.run(serve())
    assert time.monotonic() - began < 60, "the job sleeps for 600 s"
    asyncio.run(serve_again())

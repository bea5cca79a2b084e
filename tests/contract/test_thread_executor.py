"""What the thread executor does beyond the contract."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chancy.attempt import Released
from tests.contract import executor_scripts
from tests.contract.executor_calls import (
    Place,
    end_of,
    result,
    started,
)
from tests.waiting import eventually


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_thread_slot_is_taken_until_an_interrupted_job_returns(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with started("thread", concurrency=2) as it:
        claim = place.waiting("wait_for_file")
        running = asyncio.create_task(it.run(claim))
        await place.has_started()
        assert it.interrupt(claim, Released("the worker stops")) is False
        assert await end_of(running) == Released("the worker stops")
        assert it.slots == 1
        assert caplog.text.count("its slot is taken until it returns") == 1
        assert await result(it, "echo", value="beside it") == "beside it"
        place.until.touch()
        await eventually(lambda: it.slots == 2)


def test_thread_that_is_stuck_does_not_keep_a_worker_from_exiting(tmp_path: Path) -> None:
    assert executor_scripts.run("stick-thread", tmp_path) == "stopped\n"

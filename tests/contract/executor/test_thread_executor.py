"""What the thread executor does beyond the contract."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chancy.attempt.outcome import Released
from chancy.executors.thread import pool
from tests.contract.executor import worker_scripts as executor_scripts
from tests.contract.executor.calls import Place, end_of, result, started
from tests.support.waiting import eventually


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
        assert caplog.text.count("it occupies its slot until it returns") == 1
        assert await result(it, "echo", value="beside it") == "beside it"
        place.until.touch()
        await eventually(lambda: it.slots == 2)


def test_thread_that_is_stuck_does_not_keep_a_worker_from_exiting(tmp_path: Path) -> None:
    assert executor_scripts.run("stick-thread", tmp_path) == "stopped\n"


def test_thread_that_a_job_began_and_that_is_stuck_does_not_keep_a_worker_from_exiting(
    tmp_path: Path,
) -> None:
    """The job gave up waiting for it, and ended."""
    assert executor_scripts.run("leave-thread", tmp_path) == "stopped\n"
    assert (tmp_path / "started").exists()


async def test_thread_whose_last_tasks_heed_nothing_is_left_behind(
    place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PARTING_S", 0.2)
    try:
        async with started("thread") as it:
            assert await result(it, "leave_stubborn_task", until=str(place.until)) == "ended"
        assert (
            "threads did not end within 0.2 s and are left behind: chancy-thread-1" in caplog.text
        )
    finally:
        place.until.touch()


async def test_thread_to_which_a_job_hands_work_does_it(place: Place) -> None:
    async with started("thread") as it:
        assert await result(it, "hand_over", values=[3, 0, 1]) == [[3, 0, 1], "ZeroDivisionError"]

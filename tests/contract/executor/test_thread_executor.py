"""What the thread executor does beyond the contract."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chancy.attempt.outcome import Cancelled, Released, Returned
from chancy.executors.base import Executor
from chancy.executors.thread import pool
from tests.contract.executor import worker_scripts as executor_scripts
from tests.contract.executor.calls import DEADLINE_S, Place, claim_of, end_of, result, started
from tests.support.waiting import eventually


def test_thread_that_is_stuck_does_not_keep_a_worker_from_exiting(tmp_path: Path) -> None:
    assert executor_scripts.run("stick-thread", tmp_path) == "stopped\n"


def test_thread_that_a_job_began_and_that_is_stuck_does_not_keep_a_worker_from_exiting(
    tmp_path: Path,
) -> None:
    """The job gave up waiting for it, and ended."""
    assert executor_scripts.run("leave-thread", tmp_path) == "stopped\n"
    assert (tmp_path / "started").exists()


async def test_thread_whose_last_tasks_ignore_every_request_is_left_behind(
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


async def warm(it: Executor) -> None:
    """Run short jobs until calls are prefetched."""

    async def consume() -> None:
        while it.slots < 4:
            await result(it, "nothing")

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(consume() for _ in range(4)))


async def test_thread_slots_grow_with_short_jobs_and_shrink_with_a_long_one(place: Place) -> None:
    async with started("thread") as it:
        await warm(it)
        running = asyncio.create_task(it.run(place.waiting("wait_for_file")))
        await eventually(lambda: it.slots == 1)
        place.until.touch()
        assert isinstance(await end_of(running), Returned)


async def test_thread_prefetched_calls_can_be_cancelled_and_are_released_behind_a_long_job(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started("thread") as it:
        await warm(it)
        long = asyncio.create_task(it.run(place.waiting("wait_for_file")))
        await place.has_started()
        monkeypatch.setattr("chancy.executors.thread.executor._PATIENCE_S", 0.5)
        claims = [claim_of("nothing") for _ in range(3)]
        behind = [asyncio.create_task(it.run(claim)) for claim in claims]
        await asyncio.sleep(0)
        assert it.interrupt(claims[1], Cancelled("not needed"))
        assert await end_of(behind[1]) == Cancelled("not needed")
        late = Released("the jobs before it take too long")
        assert [await end_of(behind[0]), await end_of(behind[2])] == [late, late]
        assert not long.done()
        place.until.touch()
        assert isinstance(await end_of(long), Returned)


async def test_thread_result_does_not_wait_for_a_long_job_of_the_same_thread(place: Place) -> None:
    async with started("thread") as it:
        await warm(it)
        claims = [claim_of("nothing"), claim_of("nothing"), place.waiting("wait_for_file")]
        ends = [asyncio.create_task(it.run(claim)) for claim in claims]
        assert isinstance(await end_of(ends[1]), Returned)
        assert isinstance(await end_of(ends[0]), Returned)
        assert not ends[2].done()
        place.until.touch()
        assert isinstance(await end_of(ends[2]), Returned)

"""What the async executor does beyond the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from chancy.attempt.judge import judge
from chancy.attempt.outcome import Cancelled, Outcome, Raised, Released, Returned, TimedOut
from chancy.attempt.settlement import Settlement
from chancy.clock import SystemClock
from chancy.executors.coroutine.executor import AsyncExecutor
from chancy.executors.setup import ExecutorSetup
from chancy.job.limits import Limit, encode_limits
from chancy.queue.executor_options import AsyncOptions
from chancy.worker.runner import Runner
from chancy.worker.unknown_functions import UnknownFunctions
from tests.contract.executor import worker_scripts as executor_scripts
from tests.contract.executor.calls import (
    DEADLINE_S,
    JOBS,
    MAX_PAYLOAD,
    Place,
    claim_of,
    end_of,
    find,
    result,
    run,
)
from tests.support.waiting import eventually

UNKNOWN = UnknownFunctions("q", find, SystemClock(), after_s=60.0)


@pytest.fixture
def grace_s() -> float:
    return DEADLINE_S


@pytest.fixture
async def in_loop(grace_s: float) -> AsyncIterator[AsyncExecutor]:
    options = AsyncOptions(grace_s=grace_s)
    made = AsyncExecutor(
        ExecutorSetup(concurrency=4, find=find, max_payload=MAX_PAYLOAD, options=options)
    )
    await made.start()
    yield made
    await made.stop()


async def test_async_interrupt_before_the_second_step(in_loop: AsyncExecutor, place: Place) -> None:
    """The job's task has not taken the coroutine over yet: neither a new one nor a used one."""
    for _ in range(2):
        claim = place.waiting()
        consumer = asyncio.create_task(in_loop.run(claim))
        await asyncio.sleep(0)
        assert place.started.exists()
        assert in_loop.interrupt(claim, Cancelled("asked")) is True
        assert await end_of(consumer) == Cancelled("asked")
        assert place.stopped.exists()
        place.stopped.unlink()
        place.started.unlink()
        assert await result(in_loop, "echo_async", value=1) == 1  # leaves a task to use again


@pytest.mark.parametrize("grace_s", [0.05])
async def test_async_job_that_swallows_its_cancel_is_abandoned(
    in_loop: AsyncExecutor, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends as it was told to, once; what it does later changes nothing."""
    claim = place.waiting("swallow")._replace(limits=encode_limits((Limit.time(0.01),)))
    settled: list[Settlement] = []
    runner = Runner(in_loop, judge, settled.append, SystemClock(), UNKNOWN)
    try:
        runner.give([claim])
        await eventually(lambda: settled)
        assert runner.idle.is_set()
        assert f"job {claim.id} ({JOBS}.swallow) did not end within 0.05 s" in caplog.text
        assert settled == [judge(claim, TimedOut(0.01))]
        [stray] = [task for task in asyncio.all_tasks() if task.get_name() == "chancy-job"]
        # Somebody else has the job now, as another claim: here, of all places.
        place.started.unlink()
        again = claim._replace(lease=uuid4(), limits=None)
        runner.give([again])
        await place.has_started()
        place.until.touch()
        await eventually(lambda: len(settled) == 2)
        assert settled[1] == judge(again, Returned('"went on"'))
        await eventually(stray.done)
        assert len(settled) == 2
    finally:
        place.until.touch()
        await runner.close()


@pytest.mark.parametrize("asked", [(), (Cancelled("asked"),)])
async def test_async_released_job_has_no_long_grace(
    place: Place, monkeypatch: pytest.MonkeyPatch, asked: tuple[Outcome, ...]
) -> None:
    monkeypatch.setattr("chancy.executors.coroutine.executor.RELEASED_S", 0.05)
    patient = AsyncOptions(grace_s=3_600)
    it = AsyncExecutor(
        ExecutorSetup(concurrency=1, find=find, max_payload=MAX_PAYLOAD, options=patient)
    )
    await it.start()
    try:
        claim = place.waiting("swallow")
        running = asyncio.create_task(it.run(claim))
        await place.has_started()
        outcomes = [*asked, Released("the worker stops")]
        for outcome in outcomes:
            assert it.interrupt(claim, outcome) is True
        assert await end_of(running) == outcomes[0]
    finally:
        place.until.touch()
        await it.stop()


@pytest.mark.parametrize("function", ["give_in", "trip"])
async def test_async_interrupted_job_may_not_choose_its_outcome(
    in_loop: AsyncExecutor, place: Place, function: str
) -> None:
    """It returns or raises because it was stopped; it did not end first."""
    claim = claim_of(function, started=str(place.started))
    running = asyncio.create_task(in_loop.run(claim))
    await place.has_started()
    in_loop.interrupt(claim, TimedOut(1.0))
    assert await end_of(running) == TimedOut(1.0)


async def test_async_job_that_cancels_itself_affects_no_other_job(in_loop: AsyncExecutor) -> None:
    for _ in range(3):
        assert await result(in_loop, "cancel_itself", wait=False) == "did not wait"
        assert await result(in_loop, "same_task") is True
        outcome = await run(in_loop, "cancel_itself", wait=True)
        assert isinstance(outcome, Raised)
        assert outcome.failure.is_a("asyncio.exceptions.CancelledError")
        assert outcome.failure.message == "by itself"
        assert await result(in_loop, "echo_async", value=1) == 1


@pytest.mark.parametrize("turns", [0, 3])
@pytest.mark.parametrize("how", ["cancel", "uncancel", "callback"])
async def test_async_job_that_keeps_its_task_affects_no_other_job(
    in_loop: AsyncExecutor, tmp_path: Path, how: str, turns: int
) -> None:
    ended = tmp_path / "ended"
    await result(in_loop, "echo_async", value=1)  # leaves a task to use again
    assert await result(in_loop, "use_its_task_later", how=how, ended=str(ended)) == how
    for _ in range(turns):
        await asyncio.sleep(0)
    assert ended.exists() == (turns > 0 and how == "callback")
    assert await asyncio.wait_for(result(in_loop, "same_task"), DEADLINE_S) is True


async def test_async_jobs_that_do_not_wait_cost_no_turn_of_the_loop(
    in_loop: AsyncExecutor,
) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await asyncio.sleep(0)
    for _ in range(100):
        assert await result(in_loop, "echo_async", value=1) == 1
    counting.cancel()
    assert turns <= 1


def test_async_abandoned_job_does_not_keep_a_worker_from_exiting(tmp_path: Path) -> None:
    assert executor_scripts.run("abandon", tmp_path) == "stopped\n"


def test_async_thread_that_is_stuck_does_not_keep_a_worker_from_exiting(tmp_path: Path) -> None:
    assert executor_scripts.run("stick-async", tmp_path) == "stopped\n"

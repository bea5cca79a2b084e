"""Time and memory limits, and stopping, in children."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator

import psutil
import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Cancelled, MemoryExceeded, Outcome, Returned, TimedOut
from chancy.executors.base import Executor
from chancy.job.limits import Limit
from chancy.queue.executor_options import ProcessOptions
from tests.contract.executor.calls import (
    DEADLINE_S,
    Place,
    claim_of,
    end_of,
    limited,
    result,
    started,
)

ASKED = Cancelled("somebody asked")
MB = 2**20


@pytest.fixture
async def child() -> AsyncIterator[Executor]:
    # Not killed however slow the machine is.
    async with started("process", options=ProcessOptions(grace_s=DEADLINE_S)) as made:
        # The time that the first job takes to import its module is its own.
        assert await result(made, "how_ready") == "no"
        yield made


async def within(it: Executor, seconds: float, claim: Claim) -> Outcome:
    return await end_of(asyncio.create_task(it.run(limited(claim, Limit.time(seconds)))))


def waiting(place: Place, function: str) -> Claim:
    return claim_of(function, started=str(place.started), until=str(place.until))


async def test_process_plain_function_can_clean_up_at_its_time_limit(
    child: Executor, place: Place
) -> None:
    pid = await result(child, "pid")
    claim = claim_of(
        "clean_up",
        started=str(place.started),
        until=str(place.until),
        stopped=str(place.stopped),
    )
    outcome = await within(child, 0.1, claim)
    assert isinstance(outcome, TimedOut), outcome
    assert outcome.elapsed_s >= 0.1
    assert place.stopped.read_text() == "Interrupted: its time limit of 0.1 s has passed"
    assert await result(child, "pid") == pid, "the child was not killed"


async def test_process_job_with_an_alarm_of_its_own_keeps_its_time_limit(
    child: Executor, place: Place
) -> None:
    pid = await result(child, "pid")
    claim = claim_of(
        "clean_up_after_alarms",
        started=str(place.started),
        until=str(place.until),
        stopped=str(place.stopped),
    )
    outcome = await within(child, 0.2, claim)
    assert isinstance(outcome, TimedOut), outcome
    assert outcome.elapsed_s >= 0.2
    assert place.stopped.read_text() == "Interrupted: its time limit of 0.2 s has passed"
    assert await result(child, "pid") == pid, "the child was not killed"


async def test_process_alarm_of_a_job_is_not_its_time_limit(child: Executor) -> None:
    outcome = await within(child, 600, claim_of("return_after_alarm", seconds=0.01))
    assert isinstance(outcome, Returned), outcome
    assert outcome.result is not None
    # The time limit has its timer back.
    assert json.loads(outcome.result) > 60


async def test_process_job_that_returns_after_its_limit_has_timed_out(
    child: Executor, place: Place
) -> None:
    outcome = await within(child, 0.1, waiting(place, "return_all_the_same"))
    assert isinstance(outcome, TimedOut), outcome


async def test_process_error_in_the_cleanup_is_logged(
    child: Executor, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = await within(child, 0.1, waiting(place, "fail_when_stopped"))
    assert isinstance(outcome, TimedOut), outcome
    assert "raised while it was being stopped" in caplog.text
    assert "ValueError: in the cleanup" in caplog.text


async def test_process_job_that_does_not_stop_is_killed_after_the_grace(place: Place) -> None:
    """And the one beside it does not feel it."""
    async with started("process", concurrency=2, options=ProcessOptions(grace_s=0.2)) as it:
        beside = Place(place.other.parent)
        beside.started = place.other
        neighbour = asyncio.create_task(it.run(beside.waiting("wait_for_file")))
        await beside.has_started()
        assert await result(it, "how_ready") == "no", "its module is imported now"
        outcome = await within(it, 0.3, waiting(place, "swallow_all"))
        assert isinstance(outcome, TimedOut), outcome
        assert 0.5 <= outcome.elapsed_s < DEADLINE_S
        assert not psutil.pid_exists(int(place.started.read_text()))
        assert await result(it, "echo", value="next") == "next"
        assert not neighbour.done()
        beside.until.touch()
        assert isinstance(await end_of(neighbour), Returned)


async def test_process_time_limit_hits_its_own_job_only(child: Executor) -> None:
    """Jobs that end about when their time is up, each followed by another in the same child."""
    pid = await result(child, "pid")
    kinds: set[type[Outcome]] = set()
    for number in range(150):
        claim = claim_of("busy", seconds=0.002 + (number % 20 - 10) / 100_000)
        first = asyncio.create_task(child.run(limited(claim, Limit.time(0.002))))
        second = asyncio.create_task(child.run(claim_of("echo", value=number)))
        outcome, after = await end_of(first), await end_of(second)
        assert isinstance(outcome, Returned | TimedOut), outcome
        assert isinstance(after, Returned), after
        assert after.result == str(number)
        kinds.add(type(outcome))
    assert kinds == {Returned, TimedOut}
    assert await result(child, "pid") == pid


async def test_process_cancel_hits_its_own_job_only(child: Executor) -> None:
    """Whenever it comes: before, in the middle of, or after the job."""
    pid = await result(child, "pid")
    luck = random.Random(1)
    kinds: set[type[Outcome]] = set()
    for number in range(300):
        claim = claim_of("busy", seconds=0.001)
        first = asyncio.create_task(child.run(claim))
        second = asyncio.create_task(child.run(claim_of("echo", value=number)))
        await asyncio.sleep(luck.uniform(0, 0.002))
        asked = child.interrupt(claim, ASKED)
        outcome, after = await end_of(first), await end_of(second)
        assert outcome is ASKED or isinstance(outcome, Returned), outcome
        assert asked or isinstance(outcome, Returned)
        assert isinstance(after, Returned), after
        assert after.result == str(number)
        kinds.add(type(outcome))
    assert kinds == {Returned, Cancelled}
    assert await result(child, "pid") == pid


async def test_process_search_that_holds_the_interpreter_can_be_stopped(
    child: Executor, place: Place
) -> None:
    """The engine of regular expressions looks at signals, and no other thread could run."""
    claim = claim_of("hold_the_interpreter", started=str(place.started))
    running = asyncio.create_task(child.run(claim))
    pid = int(await place.has_started())
    child.interrupt(claim, ASKED)
    assert await end_of(running) is ASKED
    assert await result(child, "pid") == pid


async def test_process_job_has_its_own_signal_handlers_back(child: Executor) -> None:
    """A limit uses the timer of the process, and leaves it as it found it."""
    assert isinstance(await within(child, 60, claim_of("nothing")), Returned)
    assert await result(child, "timer") == [True, 0.0]


@pytest.mark.parametrize("function", ["hog_slowly", "hold", "leak"])
async def test_process_memory_over_the_limit_ends_the_job(child: Executor, function: str) -> None:
    """Taken step by step, which the parent sees, or at once, which the system refuses."""
    pid = await result(child, "pid")
    claim = claim_of(function, megabytes=160 if function == "hog_slowly" else 2_000)
    claim = limited(claim, Limit.memory(100 * MB))
    outcome = await end_of(asyncio.create_task(child.run(claim)))
    assert isinstance(outcome, MemoryExceeded), outcome
    assert outcome.limit_bytes == 100 * MB
    assert await result(child, "pid") != pid
    held = await result(child, "hold", megabytes=150)
    assert held == 150 * MB, "those without a limit have none"


async def test_process_memory_within_the_limit_is_granted(child: Executor) -> None:
    limit = Limit.memory(200 * MB)
    for _ in range(3):
        claim = limited(claim_of("hold", megabytes=100), limit)
        assert isinstance(await end_of(asyncio.create_task(child.run(claim))), Returned)
    assert await result(child, "hold", megabytes=300) == 300 * MB


async def test_process_job_that_copes_with_refused_memory_returns(child: Executor) -> None:
    claim = limited(claim_of("catch_memory_error", megabytes=8_000), Limit.memory(100 * MB))
    outcome = await end_of(asyncio.create_task(child.run(claim)))
    assert isinstance(outcome, Returned), outcome
    assert outcome.result == '"caught"'

"""How the attempts of every executor end early: by an interrupt, by a limit, with the worker."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import psutil
import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Cancelled, Outcome, Raised, Released, Returned, TimedOut
from chancy.executors.base import Executor
from chancy.job.limits import Limit, Limits
from chancy.queue.executor_options import (
    AsyncOptions,
    ExecutorOptions,
    ProcessOptions,
    ThreadOptions,
)
from tests.contract.executor.calls import (
    DEADLINE_S,
    Place,
    claim_of,
    end_of,
    limited,
    result,
    started,
)
from tests.support.clusters import ISOLATED, ON_RAY_TOO
from tests.support.waiting import eventually

ASKED = Cancelled("somebody asked")


@pytest.fixture
def name(anywhere: str) -> str:
    return anywhere


async def interrupted(it: Executor, claim: Claim, place: Place, outcome: Outcome) -> Outcome:
    """Run a claim, and interrupt it once it has begun."""
    running = asyncio.create_task(it.run(claim))
    await place.has_started()
    it.interrupt(claim, outcome)
    return await end_of(running)


@ON_RAY_TOO
async def test_an_interrupted_coroutine_cleans_up_first(one: Executor, place: Place) -> None:
    claim = place.waiting()
    running = asyncio.create_task(one.run(claim))
    await place.has_started()
    assert one.interrupt(claim, ASKED) is True
    assert await end_of(running) == ASKED
    assert running.cancelling() == 0, "only the job is cancelled"
    assert place.stopped.exists()
    assert await result(one, "echo", value="next") == "next"


async def test_a_plain_function_that_obeys_an_interrupt_ends_as_it_says(
    one: Executor, place: Place
) -> None:
    assert await interrupted(one, place.waiting("heed"), place, ASKED) == ASKED
    assert place.stopped.read_text() == "somebody asked"
    place.started.unlink()
    assert await interrupted(one, place.waiting("look"), place, ASKED) == ASKED
    assert await result(one, "echo", value="next") == "next"


@ON_RAY_TOO
async def test_a_plain_function_that_ignores_every_request(
    name: str, one: Executor, place: Place
) -> None:
    """A child can be killed. A thread goes on, and so does the attempt, to its real end."""
    claim = place.waiting("wait_for_file")
    running = asyncio.create_task(one.run(claim))
    await place.has_started()
    assert one.interrupt(claim, ASKED) is (name in ISOLATED)
    if name not in ISOLATED:
        # Another turn of the threads and the loop: it still runs.
        await asyncio.to_thread(int)
        assert not running.done()
        place.until.touch()
        outcome = await end_of(running)
        assert isinstance(outcome, Returned)
        assert outcome.result == '"waited"'
    else:
        assert await end_of(running) == ASKED
    assert await result(one, "echo", value="next") == "next"


async def test_a_release_does_not_wait_for_a_function_that_continues(
    name: str, one: Executor, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    released = Released("the worker stops")
    claim = place.waiting("wait_for_file")
    assert await interrupted(one, claim, place, released) == released
    occupied = name == "thread"
    assert one.slots == (0 if occupied else 1)
    assert caplog.text.count("it occupies its slot until it returns") == occupied
    place.until.touch()
    await eventually(lambda: one.slots == 1)
    assert await result(one, "echo", value="next") == "next"


@pytest.mark.parametrize("function", ["wait_for_file_async", "wait_for_file"])
async def test_the_first_interrupt_counts(one: Executor, place: Place, function: str) -> None:
    """A release behind it only brings the end about."""
    claim = place.waiting(function)
    running = asyncio.create_task(one.run(claim))
    await place.has_started()
    one.interrupt(claim, ASKED)
    one.interrupt(claim, Released("the worker stops"))
    assert await end_of(running) == ASKED
    place.until.touch()
    await eventually(lambda: one.slots == 1)


@pytest.mark.parametrize("plain", [True, False])
async def test_an_error_in_the_cleanup_is_logged_and_plain_only_if_it_may_be(
    name: str, place: Place, caplog: pytest.LogCaptureFixture, plain: bool
) -> None:
    async with started(name, plain_errors=plain) as it:
        assert await interrupted(it, place.waiting("trip"), place, ASKED) == ASKED
    assert "raised while it was being stopped" in caplog.text
    assert "ValueError" in caplog.text
    assert ("in the cleanup" in caplog.text) is plain


async def test_an_interrupt_after_the_end_changes_nothing(one: Executor) -> None:
    for function in ("echo_later", "echo"):
        claim = claim_of(function, value=1)
        outcome = await one.run(claim)
        assert one.interrupt(claim, Cancelled("too late")) is False
        assert isinstance(outcome, Returned)
        assert await result(one, "echo_later", value=2) == 2


async def test_an_interrupt_of_a_stranger_is_refused(one: Executor, place: Place) -> None:
    claim = place.waiting()
    running = asyncio.create_task(one.run(claim))
    await place.has_started()
    assert one.interrupt(claim._replace(lease=uuid4()), Cancelled("an old claim")) is False
    place.until.touch()
    assert isinstance(await end_of(running), Returned)


@ON_RAY_TOO
async def test_a_job_that_waits_for_a_slot_can_be_interrupted(one: Executor, place: Place) -> None:
    """It has not begun, and it never does."""
    running = asyncio.create_task(one.run(place.waiting("wait_for_file")))
    await place.has_started()
    for outcome in (Released("the worker stops"), ASKED):
        claim = claim_of("mark", path=str(place.other))
        waiting = asyncio.create_task(one.run(claim))
        await asyncio.sleep(0)
        assert one.interrupt(claim, outcome) is True
        assert await end_of(waiting) == outcome
    place.until.touch()
    await end_of(running)
    assert await result(one, "echo", value="next") == "next"
    assert not place.other.exists()


@ON_RAY_TOO
@pytest.mark.parametrize("function", ["wait_for_file_async", "wait_for_file"])
async def test_a_consumer_that_is_torn_down_takes_its_job_along(
    name: str, one: Executor, place: Place, function: str
) -> None:
    running = asyncio.create_task(one.run(place.waiting(function)))
    pid = int(await place.has_started())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    if function == "wait_for_file_async" and name not in ISOLATED:
        await eventually(place.stopped.exists)
    if name in ISOLATED:
        await eventually(lambda: not psutil.pid_exists(pid))
    place.until.touch()
    assert await result(one, "echo", value="next") == "next"


# Limits.

COOPERATIVE = ThreadOptions(cooperative=True)
KEPT: list[tuple[str, ExecutorOptions, str]] = [
    ("process", ProcessOptions(), "wait_for_file_async"),
    ("process", ProcessOptions(), "heed"),
    ("process", ProcessOptions(grace_s=0.1), "wait_for_file"),
    ("async", AsyncOptions(), "wait_for_file_async"),
    ("async", AsyncOptions(), "give_in_to_limit"),
    ("thread", COOPERATIVE, "heed"),
    ("thread", COOPERATIVE, "wait_for_file_async"),
]


@pytest.mark.parametrize(("name", "options", "function"), KEPT)
async def test_a_time_limit_stops_the_attempt_and_none_within_it(
    name: str, options: ExecutorOptions, function: str, place: Place
) -> None:
    # The limits are the queue's, except for those that a job has of its own.
    async with started(name, options=options, limits=Limits(time_s=0.001)) as it:
        claim = limited(place.waiting(function), Limit.time(60))
        running = asyncio.create_task(it.run(claim))
        await place.has_started()
        place.until.touch()
        outcome = await end_of(running)
        assert isinstance(outcome, Returned)
        assert outcome.result in ('"waited"', '"was not asked"')
        for path in (place.started, place.until, place.stopped):
            path.unlink(missing_ok=True)
        # A child must have begun the function.
        limit_s = 1.0 if name == "process" else 0.2
        claim = limited(place.waiting(function), Limit.time(limit_s))
        outcome = await end_of(asyncio.create_task(it.run(claim)))
        assert isinstance(outcome, TimedOut), outcome
        assert outcome.limit_s == limit_s
        assert outcome.elapsed_s < DEADLINE_S
        assert place.started.exists()
        assert place.stopped.exists() is (function != "wait_for_file")
        place.until.touch()
        echo = await it.run(limited(claim_of("echo_later", value="next"), Limit.time(60)))
        assert isinstance(echo, Returned), echo


async def test_a_thread_that_ignores_its_limit_ends_as_it_ends(place: Place) -> None:
    async with started("thread", options=COOPERATIVE, limits=Limits(time_s=0.01)) as it:
        running = asyncio.create_task(it.run(place.waiting("wait_for_file")))
        await place.has_started()
        # Five times the limit: there is nothing to wait for where nothing is to happen.
        await asyncio.sleep(0.05)
        assert not running.done()
        place.until.touch()
        assert isinstance(await end_of(running), Returned)


REFUSED: list[tuple[str, ExecutorOptions, str, Limit, str]] = [
    ("thread", ThreadOptions(), "mark", Limit.time(1), "a thread cannot be stopped"),
    ("thread", ThreadOptions(), "mark", Limit.memory(2**30), "share the memory of the worker"),
    ("thread", COOPERATIVE, "mark", Limit.memory(2**30), "share the memory of the worker"),
    ("async", AsyncOptions(), "mark", Limit.time(1), "mark is a plain function"),
    ("async", AsyncOptions(), "mark", Limit.memory(2**30), "share the memory of the worker"),
    ("async", AsyncOptions(), "mark_async", Limit.memory(2**30), "share the memory"),
]


@pytest.mark.parametrize(("name", "options", "function", "limit", "why"), REFUSED)
async def test_a_limit_that_cannot_be_kept_to_is_refused_before_the_job_runs(
    name: str,
    options: ExecutorOptions,
    function: str,
    limit: Limit,
    why: str,
    place: Place,
) -> None:
    async with started(name, options=options) as it:
        outcome = await it.run(limited(claim_of(function, path=str(place.other)), limit))
    assert isinstance(outcome, Raised)
    assert outcome.failure.is_a("chancy.errors.UnsupportedLimit")
    assert why in outcome.failure.message
    assert not place.other.exists()

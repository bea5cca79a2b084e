"""Calls are handed to children ahead, and taken back from those that do not get round to them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Cancelled, Lost, Outcome, Released, Returned
from chancy.executors.base import Executor
from chancy.executors.process.prefetch import LATE_S, MAX_DEPTH, Pace
from tests.contract.executor.calls import DEADLINE_S, Place, claim_of, end_of, result, started
from tests.support.waiting import eventually


@pytest.fixture
async def one() -> AsyncIterator[Executor]:
    """An executor with one child that has just run many short jobs."""
    async with started("process") as made:
        await warm(made)
        yield made


@pytest.fixture
async def two() -> AsyncIterator[Executor]:
    async with started("process", concurrency=2) as made:
        await warm(made)
        yield made


async def warm(it: Executor) -> None:
    """Let it find out that jobs are short."""
    before = it.slots

    async def consume() -> None:
        while it.slots < before * 4:
            await result(it, "nothing")

    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(consume() for _ in range(4)))


def start(it: Executor, claims: list[Claim]) -> list[asyncio.Task[Outcome]]:
    return [asyncio.create_task(it.run(claim)) for claim in claims]


async def test_process_slots_grow_with_short_jobs_and_shrink_with_a_long_one(
    one: Executor,
) -> None:
    assert 4 <= one.slots <= MAX_DEPTH
    assert await result(one, "busy", seconds=LATE_S) == "done"
    assert one.slots == 1


async def test_process_long_job_keeps_no_short_one_waiting(two: Executor, place: Place) -> None:
    """Although many were handed to its child behind it."""
    long = claim_of("wait_for_file", started=str(place.started), until=str(place.until))
    short = [claim_of("echo", value=number) for number in range(40)]
    running = start(two, [long, *short])
    assert two.slots >= 8
    ends = [await end_of(one) for one in running[1:]]
    assert [isinstance(end, Returned) and end.result for end in ends] == list(map(str, range(40)))
    assert not running[0].done()
    place.until.touch()
    assert isinstance(await end_of(running[0]), Returned)


async def test_process_calls_that_have_not_begun_are_stopped_without_harm(
    one: Executor, place: Place
) -> None:
    """Right behind the job that runs, in the channel to its child."""
    pid = await result(one, "pid")
    long = place.waiting("wait_for_file")
    marks = [claim_of("mark", path=str(place.other)) for _ in range(3)]
    running = start(one, [long, *marks])
    await place.has_started()
    outcomes: list[Outcome] = [Released("a"), Cancelled("b"), Released("c")]
    for claim, outcome in zip(marks, outcomes, strict=True):
        assert one.interrupt(claim, outcome) is True
    assert [await end_of(run) for run in running[1:]] == outcomes
    place.until.touch()
    assert isinstance(await end_of(running[0]), Returned)
    assert not place.other.exists()
    assert await result(one, "pid") == pid


async def test_process_death_costs_nothing_but_the_job_that_ran(
    one: Executor, place: Place
) -> None:
    """Those before it have answered, those behind it run in the next child."""
    before = [claim_of("echo", value="before") for _ in range(2)]
    after = [claim_of("echo", value="after") for _ in range(2)]
    running = start(one, [*before, claim_of("exit_at_once", status=3), *after])
    ends = [await end_of(run) for run in running]
    assert [type(end) for end in ends] == [Returned, Returned, Lost, Returned, Returned]
    assert await result(one, "echo", value="next") == "next"


async def test_process_child_that_receives_nothing_loses_its_calls(two: Executor) -> None:
    """It is stopped by a signal, and the other child runs everything."""
    pids = {await result(two, "pid") for _ in range(20)}
    stopped = pids.pop()
    os.kill(stopped, signal.SIGSTOP)
    # Until then it can still receive something.
    await eventually(lambda: psutil.Process(stopped).status() == psutil.STATUS_STOPPED)
    try:
        ends = [await end_of(run) for run in start(two, [claim_of("pid") for _ in range(20)])]
        found = {int(end.result or 0) for end in ends if isinstance(end, Returned)}
        assert len(found) == 1
        assert stopped not in found
    finally:
        os.kill(stopped, signal.SIGCONT)


async def test_process_attempts_that_no_child_takes_go_back(
    one: Executor, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's consumers have taken more than can run now that the jobs are long."""
    running = start(one, [place.waiting("wait_for_file")])
    await place.has_started()
    monkeypatch.setattr("chancy.executors.process.executor._PATIENCE_S", 0.5)
    behind = start(one, [claim_of("mark", path=str(place.other)) for _ in range(3)])
    for run in behind:
        outcome = await end_of(run)
        assert isinstance(outcome, Released), outcome
    assert one.slots == 1
    place.until.touch()
    assert isinstance(await end_of(running[0]), Returned)
    assert not place.other.exists()


async def test_process_death_is_noticed_at_once_while_siblings_work(
    place: Place,
) -> None:
    async with started("process", concurrency=2) as it:
        neighbour = asyncio.create_task(it.run(place.waiting()))
        await place.has_started()
        loop = asyncio.get_running_loop()
        spans: list[float] = []
        for number in range(5):
            victim = Place(place.other.parent)
            victim.started = place.other.with_name(f"victim-{number}")
            running = asyncio.create_task(it.run(victim.waiting("wait_for_file")))
            pid = int(await victim.has_started())
            psutil.Process(pid).suspend()
            began = loop.time()
            os.kill(pid, signal.SIGKILL)
            outcome = await end_of(running)
            spans.append(loop.time() - began)
            assert isinstance(outcome, Lost)
            assert "SIGKILL" in outcome.why
        assert min(spans) < 0.1, spans
        place.until.touch()
        assert isinstance(await end_of(neighbour), Returned)


async def test_process_slots_are_none_while_no_child_can_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with started("process") as it:
        assert it.slots == 1
        with monkeypatch.context() as patch:
            patch.setattr("sys.executable", "/nowhere/python")
            os.kill(await result(it, "pid"), signal.SIGKILL)
            await eventually(lambda: it.slots == 0)
            assert it.broken is not None
            assert it.broken.startswith("an executor process could not be started")
        await eventually(lambda: it.slots == 1 and it.broken is None)
        assert await result(it, "echo", value=1) == 1


def test_pace() -> None:
    pace = Pace()
    for _ in range(3):
        pace.record(0.000_01)
        pace.update()
        assert pace.depth == 1, "nothing is known yet"
    pace.record(0.000_01)
    pace.update()
    assert pace.depth == MAX_DEPTH
    pace.record(0.006)
    pace.update()
    assert pace.depth == 2, "a job of more than 5 ms: one ahead"
    pace.record(LATE_S)
    pace.update()
    assert pace.depth == 1, "one ahead would be withdrawn"
    for _ in range(60):
        pace.record(0.001)
    pace.update()
    assert pace.depth in (9, 10)
    pace.record(0.0)
    pace.update()
    assert pace.depth > 9

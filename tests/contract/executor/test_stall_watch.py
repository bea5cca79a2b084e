"""Whoever holds up a loop is named in the log."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chancy.executors.coroutine import stall_watch as loop_watch
from chancy.executors.coroutine.stall_watch import LoopWatch
from tests.contract.executor.calls import DEADLINE_S, Place, end_of, started
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(loop_watch, "EVERY_S", 0.02)
    monkeypatch.setattr(loop_watch, "BLOCKED_S", 0.1)
    caplog.set_level(logging.INFO, logger="chancy.executors")


@pytest.fixture
def helper() -> Iterator[Callable[[Callable[[], Any]], None]]:
    """Runs something in a thread, and sees to it that the thread ends."""
    threads: list[threading.Thread] = []

    def start(call: Callable[[], Any]) -> None:
        threads.append(threading.Thread(target=call))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()


def watching() -> int:
    return sum(thread.name == "chancy-loop-watch" for thread in threading.enumerate())


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)


@pytest.mark.parametrize("function", ["block", "block_later", "block_in_task"])
async def test_the_job_that_blocks_is_named_with_its_stack(
    place: Place,
    caplog: pytest.LogCaptureFixture,
    helper: Callable[[Callable[[], Any]], None],
    function: str,
) -> None:
    claim = place.waiting(function)
    named = f"job={claim.id} func={claim.func}"

    def said(event: str) -> list[logging.LogRecord]:
        """A busy machine may hold the loop up before the job does."""
        messages = [(one, one.getMessage()) for one in list(caplog.records)]
        return [
            one
            for one, message in messages
            if message.startswith(event) and named in message.splitlines()[0]
        ]

    def free() -> None:
        wait_for(lambda: len(said("loop_blocked")) >= 2)
        place.until.touch()

    async with started("async") as it:
        helper(free)
        await end_of(asyncio.create_task(it.run(claim)))
        await eventually(lambda: said("loop_unblocked"))
    blocked = said("loop_blocked")
    assert {one.levelname for one in blocked} == {"WARNING"}
    assert "in wait_until" in blocked[-1].getMessage()
    waits = [float(one.getMessage().split("seconds=")[1].split()[0]) for one in blocked]
    for number, one in enumerate(blocked):
        assert one.getMessage().count("  File ") <= loop_watch.FRAMES
        assert waits[number] >= 0.1 * 2**number
    [over] = said("loop_unblocked")
    assert over.levelname == "INFO"


async def test_tasks_that_are_no_jobs_are_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with started("async"):
        wait_for(lambda: "in test_tasks_that_are_no_jobs_are_shown" in caplog.text)
    assert "in test_tasks_that_are_no_jobs_are_shown" in caplog.text
    assert "job=- func=-" in caplog.text


async def test_a_loop_that_turns_is_left_alone(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(loop_watch, "monotonic", lambda: now)
    async with started("async"):
        for _ in range(6):
            now += 0.09
            await asyncio.sleep(0.05)  # the loop ticks at least once
    assert caplog.text == ""


async def test_watch_tells_for_how_long_its_loop_has_been_blocked(
    place: Place, helper: Callable[[Callable[[], Any]], None]
) -> None:
    seen: list[float] = []

    def long_blocked() -> bool:
        seen.append(watch.blocked_s)
        return seen[-1] > 0.2

    def free() -> None:
        wait_for(long_blocked)
        place.until.touch()

    watch = LoopWatch.of(asyncio.get_running_loop())
    try:
        async with started("async") as it:
            helper(free)
            await end_of(asyncio.create_task(it.run(place.waiting("block"))))
            await eventually(lambda: watch.blocked_s == 0.0)
    finally:
        watch.leave()
    assert seen[-1] > 0.2


async def test_executors_of_one_loop_share_a_thread() -> None:
    async def has(threads: int) -> None:
        # Those of other loops, and of another test, may be about to end.
        await eventually(lambda: watching() == threads)

    async with started("async"):
        async with started("async"):
            await has(1)
        await has(1)
    await has(0)
    loop = asyncio.get_running_loop()
    watch = LoopWatch.of(loop)
    assert LoopWatch.of(loop) is watch
    watch.leave()
    await has(1)
    watch.leave()
    await has(0)


def test_a_loop_that_is_closed_is_watched_no_longer() -> None:
    async def begin() -> None:
        LoopWatch.of(asyncio.get_running_loop())

    asyncio.run(begin())
    wait_for(lambda: watching() == 0)
    assert watching() == 0

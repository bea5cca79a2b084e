"""Clocks: the machine's, and the one that tests move."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chancy.clock import Backoff, Clock, SystemClock
from chancy.testing.clock import ManualClock, RealTime
from tests.support.waiting import eventually


async def test_the_machines_clock_sleeps_for_its_time() -> None:
    clock: Clock = SystemClock()
    began = time.monotonic()
    await clock.sleep(0.05)
    assert time.monotonic() - began >= 0.049
    assert clock.monotonic() >= began


async def test_the_machines_clock_waits_for_an_event() -> None:
    clock = SystemClock()
    event = asyncio.Event()
    waiting = asyncio.create_task(clock.wait(event, 60.0))
    await asyncio.sleep(0)
    event.set()
    assert await waiting is True
    assert await clock.wait(event, 0.0) is True


@pytest.mark.parametrize("timeout_s", [0.01, 0.0, -1.0])
async def test_the_machines_clock_gives_up_on_an_event(timeout_s: float) -> None:
    assert await SystemClock().wait(asyncio.Event(), timeout_s) is False


async def test_a_cancelled_wait_is_cancelled() -> None:
    waiting = asyncio.create_task(SystemClock().wait(asyncio.Event(), 60.0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_back_off_grows_to_its_cap_and_never_spins() -> None:
    backoff = Backoff(base_s=0.1, cap_s=5.0)
    for failures in range(2_000):
        ceiling = min(5.0, 0.1 * 2.0 ** min(failures, 30))
        assert 0.025 <= backoff.next_s() <= max(ceiling, 0.025)
    assert backoff.failures == 2_000
    backoff.reset()
    assert backoff.failures == 0
    assert backoff.next_s() <= 0.1


def test_back_off_is_spread() -> None:
    delays = []
    for _ in range(50):
        backoff = Backoff(base_s=1.0, cap_s=1.0)
        delays.append(backoff.next_s())
    assert len(set(delays)) > 25


def test_real_time_is_aware_and_in_utc() -> None:
    assert abs(RealTime().now() - datetime.now(UTC)) < timedelta(seconds=5)
    assert RealTime().now().utcoffset() == timedelta(0)


async def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock()
    before = clock.now(), clock.monotonic()
    await clock.sleep(0)
    await clock.sleep(-1)
    assert (clock.now(), clock.monotonic()) == before
    clock.advance(90.5)
    assert clock.now() - before[0] == timedelta(seconds=90.5)
    assert clock.monotonic() - before[1] == 90.5


async def test_time_wakes_sleepers_in_order() -> None:
    clock: ManualClock = ManualClock()
    woken: list[int] = []

    async def sleeper(seconds: int) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    async with asyncio.TaskGroup() as tasks:
        for seconds in (3, 1, 2, 10):
            tasks.create_task(sleeper(seconds))
        await eventually(lambda: clock.sleepers == 4)
        clock.advance(0.5)
        await asyncio.sleep(0)
        assert woken == []
        clock.advance(2.5)
        await eventually(lambda: len(woken) == 3)
        assert woken == [1, 2, 3]
        assert clock.sleepers == 1
        clock.advance(7)
    assert woken == [1, 2, 3, 10]
    assert clock.sleepers == 0


async def test_a_manual_clock_waits_for_an_event_or_its_time() -> None:
    clock = ManualClock()
    event = asyncio.Event()
    waiting = asyncio.create_task(clock.wait(event, 5.0))
    await eventually(lambda: clock.sleepers == 1)
    clock.advance(5.0)
    assert await waiting is False
    waiting = asyncio.create_task(clock.wait(event, 5.0))
    await eventually(lambda: clock.sleepers == 1)
    event.set()
    assert await waiting is True
    assert clock.sleepers == 0
    assert await clock.wait(event, 5.0) is True
    assert await clock.wait(asyncio.Event(), 0.0) is False


async def test_cancelled_sleepers_are_forgotten() -> None:
    clock = ManualClock()
    sleeping = asyncio.create_task(clock.sleep(5.0))
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 5.0))
    await eventually(lambda: clock.sleepers == 2)
    sleeping.cancel()
    waiting.cancel()
    await asyncio.wait((sleeping, waiting))
    assert clock.sleepers == 0
    clock.advance(10.0)


@given(st.floats(max_value=-1e-9, allow_nan=False))
def test_time_does_not_go_back(seconds: float) -> None:
    with pytest.raises(ValueError, match="time cannot go back"):
        ManualClock().advance(seconds)

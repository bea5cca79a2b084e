"""The moments at which a timer runs."""

from __future__ import annotations

import asyncio

import pytest

from chancy.plugin.leader import Unelected
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.timers import Timer, Timers
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.testing.clock import ManualClock
from tests.support.waiting import eventually


@pytest.mark.row("R35")
async def test_a_timer_runs_every_interval_and_makes_up_for_none_that_it_missed() -> None:
    """From the beginning of one run to that of the next, however long each takes."""
    clock, began = ManualClock(), list[float]()
    takes_s = {2: 0.75, 3: 2.5}  # less than an interval, and more than two

    async def work() -> None:
        began.append(clock.monotonic())
        await clock.sleep(takes_s.get(len(began), 0.0))

    timers = Timers(
        RedisClient(RedisSettings()),
        [Timer("work", work, on_leader=False, every_s=1.0)],
        Unelected(),
        clock,
    )
    serving = asyncio.create_task(timers.serve())
    for _ in range(36):
        await eventually(lambda: clock.sleepers)
        clock.advance(0.25)
    await eventually(lambda: clock.sleepers)
    serving.cancel()
    await asyncio.wait([serving])
    assert began == [1.0, 2.0, 3.0, 5.5, 6.5, 7.5, 8.5]

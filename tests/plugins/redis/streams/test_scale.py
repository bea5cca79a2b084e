"""Many workers and partitions at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.plugins.redis.streams.fleet import fleet
from tests.support.waiting import eventually

PARTITIONS, WORKERS, EVENTS = 256, 16, 1_024


@pytest.mark.row("R31", "R45", "R46")
@pytest.mark.parametrize("join_delay_s", [0.0, pytest.param(1.0, marks=pytest.mark.chaos)])
async def test_a_burst_of_workers_settles(place: dict[str, Any], join_delay_s: float) -> None:
    """With a delay in few plans, without one all the same."""
    async with fleet(
        **place, partitions=PARTITIONS, options={"join_delay_s": join_delay_s}
    ) as crew:
        await crew.send(0, EVENTS, keys=PARTITIONS)
        began = asyncio.get_running_loop().time()
        workers = []
        for _ in range(WORKERS):
            workers.append(await crew.start())
            if join_delay_s:
                # One after the other, all within the delay: each would make a plan to follow.
                await asyncio.sleep(join_delay_s / WORKERS / 3)
        await eventually(crew.settled)
        await eventually(lambda: len(crew.seen) >= EVENTS)
        took_s = asyncio.get_running_loop().time() - began
        assert sorted(crew.numbers) == list(range(EVENTS)), "each once"
        assert crew.out_of_order() == []
        assert took_s < 10
        if join_delay_s:
            moves = [worker.executor.runner.counters.rebalances for worker in workers]
            assert max(moves) <= 4, moves

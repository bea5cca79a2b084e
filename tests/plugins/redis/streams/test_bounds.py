"""What a worker takes of a server, and what a partition keeps of events that nobody takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chancy.plugins.redis.streams.processing.events import Events
from tests.plugins.redis.streams.fleet import Order, fleet
from tests.support.waiting import eventually

SIZE = 50


@pytest.mark.row("R06")
async def test_a_processor_that_was_away_begins_with_what_is_left_and_the_rest_is_counted(
    redis_url: str,
) -> None:
    """Twice the size comes meanwhile, also in the place of what it had at hand."""
    stuck = asyncio.Event()

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            crew.note(worker, events, order)
            await stuck.wait()

    options = {"prefetch": 10, "grace_s": 0}
    stream_options = {"size": SIZE, "full": "drop_oldest"}
    async with fleet(
        redis_url, partitions=1, handler=handle, options=options, stream_options=stream_options
    ) as crew:
        worker = await crew.start()
        await crew.send(0, 10)
        await eventually(lambda: crew.numbers == [0])
        await crew.stop(worker)
        held = await crew.pending()
        assert 1 <= held <= 10
        for first in range(10, 10 + 2 * SIZE, 10):
            await crew.send(first, 10)
        stuck.set()
        crew.seen.clear()
        await crew.start()
        await eventually(lambda: crew.numbers and crew.numbers[-1] == 9 + 2 * SIZE)
        left = len(crew.numbers)
        assert SIZE - 10 <= left <= SIZE
        assert crew.numbers == [*range(10 + 2 * SIZE - left, 10 + 2 * SIZE)]
        stat = crew.orders.keys.stat(0)
        dropped: Any = await crew.orders.link.command("HGET", stat, "dropped")
        assert int(dropped) == 10 + 2 * SIZE - left
        lost: Any = await crew.orders.link.command("HGET", stat, "lost:handle")
        assert int(lost) == held, "of those that it had not acknowledged"

        await eventually(crew.idle)


@pytest.mark.row("R16")
async def test_any_number_of_partitions_is_waited_for_by_one_connection(redis_url: str) -> None:
    """Also for what members tell each other; a few more do the rest."""
    async with fleet(redis_url, partitions=64) as crew:
        await crew.settle()
        await crew.send(0, 640, keys=64)
        await eventually(lambda: len(crew.seen) == 640)
        link = crew.orders.link

        async def idle() -> bool:
            info: Any = await link.command("INFO", "clients")
            assert info["blocked_clients"] <= 1
            return bool(info["blocked_clients"] == 1)

        await eventually(idle)
        info: Any = await link.command("INFO", "clients")
        assert info["connected_clients"] <= 10

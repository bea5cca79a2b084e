"""A server that is out of memory takes no events; those that it has are processed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from chancy.errors import StatementFailed
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Options, Processor
from tests.plugins.redis.streams.fleet import Order, fleet
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually


async def test_events_are_processed_on_a_full_server(own_redis: Callable[..., RedisServer]) -> None:
    """From the start of a worker to its end."""

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            if order.seq == 3:
                raise ValueError("three")
            crew.note(worker, events, order)

    options = {"policy": Ignore(keep=True)}
    server = own_redis(maxmemory_policy="noeviction")
    async with fleet(server.url, partitions=2, handler=handle, options=options) as crew:
        link, keys = crew.orders.link, crew.orders.keys
        await crew.send(0, 20, keys=2)
        await link.command("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StatementFailed, match="Redis is full"):
            await crew.send(20, 1)
        worker = await crew.start()
        await eventually(lambda: len(crew.seen) == 19)

        await eventually(crew.idle)
        assert sorted(crew.numbers) == [number for number in range(20) if number != 3]
        assert await link.command("XLEN", keys.dead(1, "handle")) == 1
        await crew.stop(worker)
        assert await link.command("ZCARD", keys.members("handle")) == 0

        async def nothing(_: object) -> None: ...

        processor = Processor(crew.orders, nothing, name="handle", options=Options(lease_s=60.0))
        ownership = Ownership(link, processor, "another")
        for partition in (await ownership.acquire([0, 1])).values():
            # It was released.
            assert isinstance(partition, OwnedPartition)
            deadline, partition.deadline = partition.deadline, -math.inf
            assert await ownership.extend([partition]) == []
            assert partition.deadline > deadline
            assert await ownership.halt(partition, "because")
            assert await ownership.park(partition, RuntimeError("because"))
        lead: Any = await link.run("streams.lead", ["{t:st}:lead"], ["another", 1_000])
        assert lead == 1

"""Events so large that a worker must not ask for as many as it could of small ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import ScriptCall
from tests.plugins.redis.streams.fleet import Fleet, Order, fleet
from tests.support.waiting import eventually

EVENT = 256 * 1024
PARTITIONS, EVENTS = 4, 64


async def send(crew: Fleet, count: int) -> None:
    """Append large events, to one partition after the other."""
    coding, link, partitions = crew.orders.coding, crew.orders.link, crew.partitions
    for number in range(count):
        name, data = coding.encode(Order(key=number % partitions, seq=number))
        log = crew.orders.keys.log(number % partitions)
        await link.command("XADD", log, "*", name, data + b" " * EVENT)


def size_of(reply: Any) -> int:
    """Bytes that an exchange has brought."""
    return sum(sum(map(len, fields)) for _, fields in reply[1])


def slow_line(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Let no answer of more bytes come in time; gives how large those were that came."""
    came, call_many = list[int](), RedisClient.run_many

    async def slow(link: RedisClient, calls: Sequence[ScriptCall], **more: Any) -> Any:
        replies = await call_many(link, calls, **more)
        if any(one.script == "streams.exchange" for one in calls):
            size = sum(map(size_of, replies))
            if size > most:
                raise BrokerUnavailable("no answer in time")
            came.append(size)
        return replies

    monkeypatch.setattr(RedisClient, "run_many", slow)
    return came


@pytest.mark.row("R16", "R11")
async def test_late_reads_are_repeated_in_smaller_portions(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = slow_line(monkeypatch, most=5 * EVENT)
    async with fleet(redis_url, partitions=PARTITIONS) as crew:
        await send(crew, EVENTS)
        await crew.start()
        await eventually(lambda: len(crew.seen) >= EVENTS)
        assert sorted(crew.numbers) == [*range(EVENTS)], "each once"
        assert crew.out_of_order() == []
        assert max(came) > EVENT


@pytest.mark.row("R16")
async def test_waiting_data_is_bounded_in_bytes(redis_url: str) -> None:
    stuck = asyncio.Event()

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            crew.note(worker, events, order)
            if order.seq >= 40:
                await stuck.wait()

    async with fleet(redis_url, partitions=1, handler=handle) as crew:
        await send(crew, 80)
        worker = await crew.start()
        await eventually(lambda: len(crew.seen) > 40)
        (lane,) = worker.executor.runner.partitions
        # Sixteen and what is at hand, instead of the 64 that it might have.
        await eventually(lambda: not lane.fetching)
        assert 1 <= len(lane.buffer) <= 17
        stuck.set()
        await eventually(lambda: crew.numbers == [*range(80)])

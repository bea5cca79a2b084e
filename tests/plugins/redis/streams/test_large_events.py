"""Large events, of which a worker must request fewer than of small ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.streams.group.fetch_budget import TRIP_BYTES, FetchBudget
from chancy.plugins.redis.streams.inspection import Inspection
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.transport.scripts import Value
from tests.plugins.redis.streams.fleet import Fleet, Order, fleet
from tests.plugins.redis.trips import Calls, Send, around, script
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
    """The bytes of the events in a reply."""
    return sum(sum(map(len, fields)) for _, fields in reply[1])


def slow_line(monkeypatch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Lose replies of more bytes; returns the sizes of the other replies."""
    came = list[int]()

    async def slow(calls: Calls, send: Send) -> list[Any]:
        replies = await send()
        if any(map(script("streams.exchange"), calls)):
            size = sum(map(size_of, replies))
            if size > most:
                raise BrokerUnavailable("no answer in time")
            came.append(size)
        return replies

    around(monkeypatch, slow)
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
        # Sixteen events and those in progress, instead of 64.
        await eventually(lambda: not lane.fetching)
        assert 1 <= len(lane.buffer) <= 17
        stuck.set()
        await eventually(lambda: crew.numbers == [*range(80)])


@pytest.mark.row("R16")
async def test_large_events_behind_small_ones_are_not_read_at_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = slow_line(monkeypatch, most=EVENTS * EVENT * 2)
    async with fleet(redis_url, partitions=1) as crew:
        await crew.start()
        await crew.send(0, 100)
        await eventually(lambda: len(crew.seen) == 100)
        coding, link, keys = crew.orders.coding, crew.orders.link, crew.orders.keys
        run: list[Value] = [2, EVENTS]
        for number in range(100, 100 + EVENTS):
            name, data = coding.encode(Order(key=0, seq=number))
            run += [name, data + b" " * EVENT]
        args = (1_000, "block", "count", 0, *run)
        await link.run("streams.send", (keys.log(0), keys.stat(0)), args)
        await eventually(lambda: crew.numbers == [*range(100 + EVENTS)])
        # The first large event ends its read; the next reads expect the size.
        assert max(came) < TRIP_BYTES + 16 * EVENT
        assert next(size for size in came if size > EVENT) < 2 * EVENT


@pytest.mark.row("R43")
async def test_a_lag_that_the_server_does_not_report_is_counted_up_to_a_mebibyte(
    redis_url: str,
) -> None:
    async with fleet(redis_url, partitions=1) as crew:
        await send(crew, 2 * EVENTS)
        link, log = crew.orders.link, crew.orders.keys.log(0)
        await link.command("XGROUP", "CREATE", log, "handle", "0")
        await link.command("XREADGROUP", "GROUP", "handle", "c", "COUNT", 1, "STREAMS", log, ">")
        look = Inspection(crew.orders, "handle")

        async def lag() -> tuple[int, bool]:
            (report,) = await look.report()
            return report.lag, report.at_least

        (_, (second, _), *_) = await link.command("XRANGE", log, "-", "+", "COUNT", 2)
        await link.command("XDEL", log, second)
        counted, at_least = await lag()
        assert at_least
        assert 4 <= counted <= 20
        await link.command("XTRIM", log, "MAXLEN", 3)
        assert await lag() == (3, False)


MIB = 1024 * 1024


def lane(mean: float) -> Any:
    return SimpleNamespace(room=1_000, more=True, closing=False, mean=mean)


@pytest.mark.parametrize(
    ("means", "counts"),
    [
        ([MIB, MIB], [8, 0]),
        ([9 * MIB, 1024], [1, 0]),
        ([9 * MIB, 9 * MIB, 1.0], [1, 0, 0]),
        ([1024, 9 * MIB], [1_000, 0]),
    ],
)
def test_one_event_at_least_and_never_less_than_none(means: list[float], counts: list[int]) -> None:
    assert FetchBudget(5.0).share([lane(mean) for mean in means]) == counts

"""The events that a processor gets at a time, and their acknowledgement, by kind of iteration."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.protocols import Item, MiddlewareContext
from chancy.plugins.redis.streams.processing.blocking_events import BlockingEvents
from chancy.plugins.redis.streams.processing.events import Chain, Events
from chancy.plugins.redis.streams.processing.middleware import middleware
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import Order, orders_of, working
from tests.plugins.redis.streams.orders import pending
from tests.support.waiting import eventually

#: Its events are at hand until a test lets them go; those of the other are done at once.
HELD, OTHER = 0, 1
BATCH = 3


@middleware
async def through(parent: AsyncIterator[Item], place: MiddlewareContext) -> AsyncIterator[Item]:
    async for item in parent:
        yield item


def declare(streams: Streams) -> Stream[Order]:
    return orders_of(streams, 2)


def in_loop(given: Callable[[Any], None], going: threading.Event, take: int) -> Any:
    async def handle(events: Events[Order]) -> None:
        async for one in events.take(take, within=0.05) if take else events:
            given(one)
            if events.partition == HELD:
                await asyncio.to_thread(going.wait, 30)

    return handle


def in_thread(given: Callable[[Any], None], going: threading.Event, take: int) -> Any:
    def handle(events: BlockingEvents[Order]) -> None:
        for one in events.take(take, within=0.05) if take else events:
            given(one)
            if events.partition == HELD:
                going.wait(30)

    return handle


@pytest.mark.row("R10")
@pytest.mark.parametrize("take", [0, BATCH])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        pytest.param(in_loop, {}, id="async"),
        pytest.param(in_loop, {"middleware": [through]}, id="middleware"),
        pytest.param(in_thread, {"mode": "thread"}, id="thread"),
    ],
)
async def test_an_event_is_acknowledged_when_the_next_one_is_asked_for(
    streams: Streams, make: Any, options: dict[str, Any], take: int
) -> None:
    stream, going, given = declare(streams), threading.Event(), list[Any]()
    streams.processor(stream, join_delay_s=0, **options)(make(given.append, going, take))
    count = take or 1
    await stream.send(*(Order(key=HELD, seq=number) for number in range(count)))

    async def done(partition: int) -> bool:
        return await pending(stream, partition) == 0

    async with working(streams):
        try:
            await eventually(lambda: given)
            # By the same fetcher, behind what it had to pass on by then.
            await stream.send(Order(key=OTHER, seq=9))
            await eventually(lambda: len(given) == 2)
            await eventually(lambda: done(OTHER))
            assert await pending(stream, HELD) == count
        finally:
            going.set()
        await eventually(lambda: done(HELD))


@pytest.mark.row("R14", "R45")
@pytest.mark.parametrize("threaded", [False, True])
async def test_batches_are_full_or_in_time_and_never_empty(
    streams: Streams, threaded: bool
) -> None:
    stream, seen = declare(streams), list[tuple[float, list[int]]]()
    within_s = {HELD: 60.0, OTHER: 0.3}

    def note(batch: Sequence[Order]) -> None:
        seen.append((time.monotonic(), [order.seq for order in batch]))

    async def here(events: Events[Order]) -> None:
        async for batch in events.records().take(10, within=within_s[events.partition]):
            note(batch)

    def aside(events: BlockingEvents[Order]) -> None:
        for batch in events.records().take(10, within=within_s[events.partition]):
            note(batch)

    work: Any = aside if threaded else here
    mode: Any = "thread" if threaded else "async"
    streams.processor(stream, mode=mode, join_delay_s=0, grace_s=60)(work)
    await stream.send(*(Order(key=HELD, seq=number) for number in range(20)))
    await stream.send(Order(key=OTHER, seq=20))
    async with working(streams):
        await eventually(lambda: len(seen) == 3)
        await asyncio.sleep(0.4)  # longer than a batch of the other one waits
        assert len(seen) == 3, "no batch is empty"
        sent = time.monotonic()
        await stream.send(*(Order(key=OTHER, seq=number) for number in range(21, 23)))
        await eventually(lambda: len(seen) == 4)
    batches = [batch for _, batch in seen]
    # Full ones do not wait, although the second one needs another read.
    assert [batch for batch in batches if batch[0] < 20] == [[*range(10)], [*range(10, 20)]]
    assert [batch for batch in batches if batch[0] >= 20] == [[20], [21, 22]]
    assert seen[3][0] - sent > 0.25


@pytest.mark.row("R14")
@pytest.mark.parametrize(
    ("most", "within", "reason"),
    [
        (5, 0.3, r"take\(within=0.3\) must be from 0 to the grace period, 0.2 s"),
        (5, -1, r"take\(within=-1\) must be from 0"),
        (0, 0.1, r"take\(0\): a batch must have 1 to 10,000"),
    ],
)
async def test_a_batch_that_would_outlast_the_grace_period_is_refused(
    most: int, within: float, reason: str
) -> None:
    loop = asyncio.get_running_loop()
    lane = OwnedPartition[Order](
        0, 1, time.monotonic(), prefetch=1, pending=0, last="0-0", loop=loop
    )
    events = Events(lane, Chain((), MiddlewareContext("orders", "handle", 0)), grace_s=0.2)
    blocking = BlockingEvents(lane, grace_s=0.2)
    for each in (events, events.records(), blocking, blocking.records()):
        with pytest.raises(ConfigurationError, match=reason):
            each.take(most, within=within)

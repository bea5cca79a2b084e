"""Middleware: its order, what it sees of failures, and dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.model.protocols import Item, MiddlewareContext
from chancy.plugins.redis.streams.model.record import Record
from chancy.plugins.redis.streams.processing.events import Chain, Events
from chancy.plugins.redis.streams.processing.middleware import (
    DeadLetterMiddleware,
    FunctionMiddleware,
    middleware,
)
from chancy.plugins.redis.streams.producing import batch
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from tests.plugins.redis.streams.fleet import working
from tests.plugins.redis.streams.orders import Order, pending, records
from tests.support.waiting import eventually, gives


class Tick(Record, primitive=True):
    number: int


def declare(streams: Streams, partitions: int = 1) -> Stream[Order]:
    return streams.stream("orders", record=Order, partition_by="order_id", partitions=partitions)


def numbers(item: Item) -> Any:
    events = item if isinstance(item, list) else [item]
    found = [event.record().order_id for event in events]
    return found if isinstance(item, list) else found[0]


def recorder(name: str, log: list[Any]) -> FunctionMiddleware:
    @middleware
    async def record(
        parent: AsyncIterator[Item], place: MiddlewareContext
    ) -> AsyncGenerator[Item, None]:
        try:
            async for item in parent:
                log.append((name, "before", numbers(item)))
                try:
                    yield item
                except ValueError as error:
                    log.append((name, "failed", str(error)))
                    raise
                log.append((name, "after", numbers(item)))
        finally:
            log.append((name, "ended", place.partition))

    return record


async def test_a_sink_with_a_processor_is_one_of_the_streams(streams: Streams) -> None:
    """So that commands find it, and dead letters of its processor can be sent again."""
    stream = declare(streams)
    sink = DeadLetterMiddleware(stream).sink
    assert streams.streams == [stream]

    @streams.processor(sink, name="failed")
    async def collect(events: Events[Any]) -> None: ...

    assert streams.streams == [sink, stream]


@pytest.mark.row("R17", "R45")
async def test_the_first_stands_next_to_the_log(streams: Streams) -> None:
    stream, log = declare(streams), list[Any]()

    @streams.processor(stream, middleware=[recorder("a", log), recorder("b", log)], join_delay_s=0)
    async def work(events: Events[Order]) -> None:
        async for order in events.records():
            log.append(("work", order.order_id))

    await stream.send(Order(order_id=1), Order(order_id=2))
    async with working(streams):
        await eventually(lambda: ("work", 2) in log)
    assert log[:6] == [
        *(("a", "before", 1), ("b", "before", 1), ("work", 1)),
        *(("b", "after", 1), ("a", "after", 1), ("a", "before", 2)),
    ]
    assert {("a", "ended", 0), ("b", "ended", 0)} <= set(log)
    assert not [one for one in log if one[1] == "failed"], "the end of a worker is no failure"


@pytest.mark.row("R17", "R45")
async def test_a_failure_is_seen_and_all_is_ended_before_the_next_run(streams: Streams) -> None:
    stream, log = declare(streams), list[Any]()

    @streams.processor(
        stream,
        middleware=[recorder("a", log), recorder("b", log)],
        policy=Ignore(),
        join_delay_s=0,
    )
    async def work(events: Events[Order]) -> None:
        log.append("began")
        async for orders in events.records().take(2, within=0.01):
            if orders[0].order_id == 1:
                raise ValueError("one")

    await stream.send(*(Order(order_id=number) for number in (1, 2, 3, 4)))
    async with working(streams):
        await eventually(lambda: ("a", "before", [3, 4]) in log)
    first = log[: log.index("began", 1)]
    assert first == [
        "began",
        *(("a", "before", [1, 2]), ("b", "before", [1, 2])),
        *(("b", "failed", "one"), ("b", "ended", 0)),
        *(("a", "failed", "one"), ("a", "ended", 0)),
    ]


async def test_a_middleware_may_leave_out_what_it_likes(streams: Streams) -> None:
    stream, seen = declare(streams), list[int]()

    @middleware
    async def odd(
        parent: AsyncIterator[Item], place: MiddlewareContext
    ) -> AsyncGenerator[Item, None]:
        async for item in parent:
            if isinstance(item, Event) and item.record().order_id % 2:
                yield item

    @streams.processor(stream, middleware=[odd], join_delay_s=0)
    async def work(events: Events[Order]) -> None:
        async for order in events.records():
            seen.append(order.order_id * 1)

    await stream.send(*(Order(order_id=number) for number in range(8)))
    async with working(streams):
        await eventually(lambda: seen == [1, 3, 5, 7])
        await eventually(lambda: gives(pending(stream, 0, "work"), 0))


@pytest.mark.row("R18")
@pytest.mark.parametrize("size", [1, 5])
async def test_failed_events_are_in_the_sink(streams: Streams, size: int) -> None:
    stream, seen = declare(streams), list[int]()
    letters = DeadLetterMiddleware(stream)

    @streams.processor(stream, middleware=[letters], policy=Ignore(), join_delay_s=0, grace_s=30)
    async def work(events: Events[Order]) -> None:
        if size == 1:
            async for order in events.records():
                check(order)
        else:
            # All batches are full: the first read gets eight events, the next one the others.
            async for orders in events.records().take(size, within=30):
                for order in orders:
                    check(order)

    def check(order: Order) -> None:
        if order.order_id == 11:
            raise ValueError("eleven")
        seen.append(order.order_id)

    ids = await stream.send(*(Order(order_id=number) for number in range(20)))
    async with working(streams):
        await eventually(lambda: seen and seen[-1] == 19)
    found = [one for _, one in await records(letters.sink)]
    assert letters.sink.name == "dead.orders"
    assert [letters.original(one).order_id for one in found] == (
        [11] if size == 1 else [10, 11, 12, 13, 14]
    )
    last = found[0 if size == 1 else 1]
    assert (last.stream, last.processor, last.partition) == ("orders", "work", 0)
    assert (last.xid, last.error) == (ids[11], "ValueError: eleven")
    assert await pending(stream, 0, "work") == 0


@pytest.mark.row("R18")
async def test_a_full_sink_keeps_its_dead_letters_and_failed_events_wait(
    streams: Streams, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = streams.stream("orders", record=Order, partition_by="order_id", partitions=1, size=2)
    letters = DeadLetterMiddleware(stream)
    send = Stream.send_many

    async def impatient(self: Stream[Any], records: Any) -> int:
        return await send(self, records, timeout_s=0.1)

    monkeypatch.setattr(Stream, "send_many", impatient)

    @streams.processor(stream, middleware=[letters], policy=Ignore(), join_delay_s=0)
    async def work(events: Events[Order]) -> None:
        async for order in events.records():
            raise ValueError(order.order_id)

    async def stored() -> list[int]:
        return [letters.original(one).order_id for _, one in await records(letters.sink)]

    async with working(streams):
        for number in range(3):
            await stream.send(Order(order_id=number))
        await eventually(lambda: caplog.text.count("StreamFull: the stream dead.orders") >= 2)
        assert await stored() == [0, 1]
        await eventually(lambda: gives(pending(stream, 0, "work"), 1))
        await streams.link.command("DEL", letters.sink.keys.log(0))
        await eventually(lambda: gives(stored(), [2]))


@pytest.mark.row("R18")
async def test_large_failed_events_are_in_the_sink(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events than one call sends, each of the maximum size."""
    monkeypatch.setattr(batch, "MAX_BYTES", 2_000_000)
    stream = declare(streams)
    letters = DeadLetterMiddleware(stream)

    @streams.processor(stream, middleware=[letters], policy=Ignore(), join_delay_s=0)
    async def work(events: Events[Order]) -> None:
        async for _ in events.records().take(3, within=1.0):
            raise ValueError("no")

    note = "x" * 1_000_000
    await stream.send_many(Order(order_id=number, note=note) for number in range(3))

    async def filed() -> bool:
        return len(await records(letters.sink)) == 3

    async with working(streams):
        await eventually(filed)
    assert [letters.original(one).note for _, one in await records(letters.sink)] == [note] * 3


@pytest.mark.row("R18", "R32")
async def test_interrupted_events_are_no_dead_letters(streams: Streams) -> None:
    stream, began = declare(streams), asyncio.Event()
    letters = DeadLetterMiddleware(stream)

    @streams.processor(stream, middleware=[letters], policy=Ignore(), join_delay_s=0, grace_s=0.05)
    async def work(events: Events[Order]) -> None:
        async for _ in events:
            began.set()
            await asyncio.Event().wait()

    await stream.send(Order(order_id=0))
    async with working(streams):
        await asyncio.wait_for(began.wait(), 30)
    assert await records(letters.sink) == []
    assert await pending(stream, 0, "work") == 1


@pytest.mark.row("R18")
async def test_primitive_records_are_what_they_were(streams: Streams) -> None:
    stream = streams.stream("ticks", record=Tick, partition_by="number", partitions=1)
    letters = DeadLetterMiddleware(stream)
    seen: list[int] = []

    @streams.processor(stream, middleware=[letters], policy=Ignore(), join_delay_s=0)
    async def work(events: Events[Tick]) -> None:
        async for tick in events.records():
            seen.append(tick.number)
            if tick.number == 1:
                raise ValueError("one")

    await stream.send(Tick(number=0), Tick(number=1))
    # An entry that is not a Tick: it would be lost if it had to be decoded.
    await stream.link.command("XADD", stream.keys.log(0), "*", "number", "x")
    await stream.send(Tick(number=2))
    async with working(streams):
        await eventually(lambda: 2 in seen)
    found = await streams.link.command("XRANGE", letters.sink.keys.log(0), "-", "+")
    assert [fields for _, fields in found] == [{b"number": b"1"}, {b"number": b"x"}]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, BaseException])
async def test_a_middleware_that_exits_at_a_failure_ends_no_worker(
    error: type[BaseException],
) -> None:
    """They would leave the event loop. All middleware is closed."""
    log: list[Any] = []

    @middleware
    async def exiting(
        parent: AsyncIterator[Item], place: MiddlewareContext
    ) -> AsyncGenerator[Item, None]:
        async for item in parent:
            try:
                yield item
            except ValueError:
                raise error(3) from None

    @middleware
    async def outer(
        parent: AsyncIterator[Item], place: MiddlewareContext
    ) -> AsyncGenerator[Item, None]:
        try:
            async for item in parent:
                yield item
        finally:
            log.append("closed")

    async def source() -> AsyncGenerator[Any, None]:
        yield 1

    chain = Chain((outer, exiting), MiddlewareContext("orders", "handle", 0))
    assert await anext(chain.wrap(source())) == 1
    with pytest.raises(RuntimeError, match=f"a middleware raised {error.__name__}: 3"):
        await chain.close(ValueError())
    assert log == ["closed"]

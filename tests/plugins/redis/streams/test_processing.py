"""The events of a processor: records, batches, history, and stages of several streams."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from chancy.errors import ConfigurationError
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.group.leadership import RedisGate
from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.model.record import Record
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams.fleet import working
from tests.plugins.redis.streams.orders import Order
from tests.support.waiting import eventually


class Step(Record, primitive=True):
    key: int
    seq: int


def declare(streams: Streams, partitions: int) -> Stream[Order]:
    return streams.stream("orders", record=Order, partition_by="order_id", partitions=partitions)


@pytest.mark.row("R08", "R09", "R45")
async def test_events_and_records_of_each_partition(streams: Streams) -> None:
    stream = declare(streams, 2)
    raw: list[Event[Order]] = []
    typed: list[Order] = []
    called: list[int] = []
    note_raw, note_typed = raw.append, typed.append

    @streams.processor(stream, join_delay_s=0)
    async def look(events: Events[Order]) -> None:
        called.append(events.partition)
        async for event in events:
            note_raw(event)

    @streams.processor(stream, name="typed", join_delay_s=0)
    async def read(events: Events[Order]) -> None:
        async for order in events.records():
            note_typed(order)

    sent = [Order(order_id=number) for number in range(6)]
    ids = await stream.send(*sent)
    async with working(streams):
        await eventually(lambda: len(raw) == len(typed) == 6)
    assert sorted(called) == [0, 1], "once for each partition"
    assert sorted(typed, key=lambda one: one.order_id) == sent
    for event in raw:
        order = event.record()
        assert event.xid == ids[order.order_id]
        assert event.partition == stream.route.partition(order, 2)
        assert event.data == {b"data.json": order.model_dump_json().encode()}
        assert not event.recovering
    with pytest.raises(ConfigurationError, match="two processors 'look'"):
        streams.processor(stream)(look.function)  # type: ignore[arg-type]


@pytest.mark.row("R40", "R45")
@pytest.mark.parametrize(("start", "expected"), [("0", [0, 1, 2, 3]), ("$", [2, 3])])
async def test_a_new_processor_begins_where_it_is_asked_to(
    streams: Streams, start: str, expected: list[int]
) -> None:
    stream, seen = declare(streams, 1), list[int]()

    @streams.processor(stream, start=start, join_delay_s=0)
    async def read(events: Events[Order]) -> None:
        async for order in events.records():
            seen.append(order.order_id)

    await stream.send(Order(order_id=0), Order(order_id=1))
    async with working(streams):
        if start == "$":
            log = stream.keys.log(0)

            async def begun() -> bool:
                return bool(await streams.link.command("XINFO", "GROUPS", log))

            await eventually(begun)
        await stream.send(Order(order_id=2), Order(order_id=3))
        await eventually(lambda: seen == expected)


@pytest.mark.row("R44", "R45")
async def test_a_stage_behind_another_keeps_the_order_of_keys(streams: Streams) -> None:
    first = streams.stream("first", record=Step, partition_by="key", partitions=4)
    second = streams.stream("second", record=Step, partition_by="key", partitions=8)
    seen: defaultdict[int, list[int]] = defaultdict(list)

    @streams.processor(first, join_delay_s=0)
    async def keep(events: Events[Step]) -> None:
        async for batch in events.records().take(50, within=0.05):
            await second.send(*(step for step in batch if step.seq % 2 == 0))

    @streams.processor(second, join_delay_s=0)
    async def gather(events: Events[Step]) -> None:
        async for step in events.records():
            seen[step.key].append(step.seq)

    async with working(streams):
        await first.send_many(Step(key=at % 10, seq=at // 10) for at in range(1_000))
        await eventually(lambda: sum(map(len, seen.values())) == 500)
    assert all(found == [*range(0, 100, 2)] for found in seen.values())


@pytest.mark.row("R33", "R45")
async def test_one_process_without_a_worker_leads(place: dict[str, Any]) -> None:
    links = [RedisClient(RedisSettings(**place, prefix="t:")) for _ in range(3)]
    # Asked for four times in each lease: a busy machine may miss one, and not all of them.
    lease_s = 4.0
    gates = [RedisGate(link, lease_s=lease_s) for link in links]
    tasks = [asyncio.create_task(gate.serve()) for gate in gates]

    def leaders() -> list[int]:
        return [at for at, gate in enumerate(gates) if gate.leading]

    try:
        await eventually(lambda: len(leaders()) == 1)
        (first,) = leaders()
        assert gates[first].term == 1 == await gates[first].wait()
        tasks[first].cancel()
        await asyncio.wait([tasks[first]])
        until, member = await links[first].command("HMGET", "{t:st}:lead", "until", "member")
        over = until == b"0" or member != gates[first]._member.encode()
        assert over, "it was given up, and not only left to end"
        await eventually(lambda: len(leaders()) == 1)
        (second,) = leaders()
        assert (second != first, gates[second].term) == (True, 2)
        await links[second].command("HSET", "{t:st}:lead", "member", "another")
        await eventually(lambda: not gates[second].leading)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for link in links:
            await link.close()

"""Streams for tests of senders, and their contents."""

from __future__ import annotations

from typing import Any

from chancy.plugins.redis.streams.encoding.hashing import RecordRoute
from chancy.plugins.redis.streams.encoding.record_coding import RecordCoding
from chancy.plugins.redis.streams.model.record import Record
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams.fleet import in_turn


class Order(Record):
    order_id: int
    note: str = ""


def declare(link: RedisClient, *, hasher: Any = in_turn, **options: Any) -> Stream[Order]:
    coding = RecordCoding(Order, codec=options.pop("codec", None))
    route = RecordRoute(Order, "order_id", hasher)
    return Stream("orders", link=link, coding=coding, route=route, **options)


def orders(*ids: int) -> list[Order]:
    return [Order(order_id=id) for id in ids]


async def records(stream: Stream[Any], partition: int = 0) -> list[tuple[str, Any]]:
    """The ids and the records in the log."""
    found = await stream.link.command("XRANGE", stream.keys.log(partition), "-", "+")
    flat = ([part for pair in fields.items() for part in pair] for _, fields in found)
    decoded = map(stream.coding.decode, flat)
    return [(id.decode(), record) for (id, _), record in zip(found, decoded, strict=True)]


async def entries(stream: Stream[Order], partition: int) -> list[tuple[str, int]]:
    return [(id, order.order_id) for id, order in await records(stream, partition)]


async def pending(stream: Stream[Any], partition: int, processor: str = "handle") -> int:
    found = await stream.link.command("XPENDING", stream.keys.log(partition), processor)
    return int(found["pending"])


async def every(stream: Stream[Order]) -> list[list[int]]:
    return [
        [order for _, order in await entries(stream, number)] for number in range(stream.partitions)
    ]


async def dropped(stream: Stream[Order], partition: int) -> int:
    return int(await stream.link.command("HGET", stream.keys.stat(partition), "dropped") or 0)

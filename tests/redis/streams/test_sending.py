"""Sending to real servers: order, atomicity, room, and what all senders must agree on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable, ConfigurationError, InvalidArguments
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams import batch
from chancy.plugins.redis.streams.agreement import agree
from chancy.plugins.redis.streams.batch import StreamFull
from chancy.plugins.redis.streams.codec import coding_of
from chancy.plugins.redis.streams.hashing import route_of
from chancy.plugins.redis.streams.link import Link
from chancy.plugins.redis.streams.record import Record
from chancy.plugins.redis.streams.stream import Stream
from tests.redis_fixtures import RedisServer

Declare = Callable[..., Stream["Order"]]


class Order(Record):
    order_id: int
    note: str = ""


def in_turn(key: int) -> int:
    """A hasher whose partitions a test can foresee."""
    return key


@pytest.fixture(params=["alone", "cluster"])
async def link(request: pytest.FixtureRequest) -> AsyncIterator[Link]:
    clustered = request.param == "cluster"
    url = request.getfixturevalue("redis_cluster" if clustered else "redis_url")
    made = Link(RedisSettings(url=url, cluster=clustered, prefix="t:"))
    yield made
    await made.close()


@pytest.fixture
async def alone(redis_url: str) -> AsyncIterator[Link]:
    made = Link(RedisSettings(url=redis_url, prefix="t:"))
    yield made
    await made.close()


def declare(link: Link, *, hasher: Any = in_turn, **options: Any) -> Stream[Order]:
    coding = coding_of(Order, codec=options.pop("codec", None))
    route = route_of(Order, "order_id", hasher)
    return Stream("orders", link=link, coding=coding, route=route, **options)


def orders(*ids: int) -> list[Order]:
    return [Order(order_id=id) for id in ids]


async def entries(stream: Stream[Order], partition: int) -> list[tuple[str, int]]:
    found = await stream.link.command("XRANGE", stream.keys.log(partition), "-", "+")
    return [
        (
            id.decode(),
            stream.coding.decode([part for pair in fields.items() for part in pair]).order_id,
        )
        for id, fields in found
    ]


async def every(stream: Stream[Order]) -> list[list[int]]:
    return [
        [order for _, order in await entries(stream, number)] for number in range(stream.partitions)
    ]


async def dropped(stream: Stream[Order], partition: int) -> int:
    return int(await stream.link.command("HGET", stream.keys.stat(partition), "dropped") or 0)


@pytest.mark.row("R05", "R45")
async def test_records_are_in_their_partitions_in_order(link: Link) -> None:
    stream = declare(link, partitions=4)
    ids = await stream.send(*orders(*range(10)))
    assert await every(stream) == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert [id for id, _ in await entries(stream, 0)] == [ids[0], ids[4], ids[8]]


@pytest.mark.row("R05")
async def test_one_record_and_none(alone: Link) -> None:
    stream = declare(alone, partitions=2)
    assert await stream.send() == []
    (id,) = await stream.send(Order(order_id=3))
    assert await entries(stream, 1) == [(id, 3)]


@pytest.mark.row("R05")
async def test_ids_of_the_caller_are_kept(link: Link) -> None:
    stream = declare(link, partitions=2)
    given = ["1-1", "1-2", "2-0"]
    assert await stream.send(*orders(0, 1, 2), ids=given) == given
    assert await entries(stream, 0) == [("1-1", 0), ("2-0", 2)]


@pytest.mark.row("R05")
@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (["1-1"], "1 ids were given for 3 records"),
        (["1-1", "1-2", "1-3", "1-4"], "4 ids were given for 3 records"),
        (["1-1", "1-2", "1-2"], "the id 1-2 is not above 1-2"),
        (["0-0", "1-2", "1-3"], "the id 0-0 is not above 0-0: ids must rise, from 0-1 on"),
        (["1-1", "*", "1-3"], r"'\*' is no id of an event"),
        (["1-1", "2", "3"], "'2' is no id of an event"),
    ],
)
async def test_ids_that_cannot_be_are_refused(alone: Link, ids: list[str], reason: str) -> None:
    stream = declare(alone, partitions=2)
    with pytest.raises(InvalidArguments, match=reason):
        await stream.send(*orders(0, 1, 2), ids=ids)
    assert await every(stream) == [[], []]


async def test_an_id_below_those_of_the_log_writes_nothing(alone: Link) -> None:
    stream = declare(alone, partitions=1)
    await stream.send(*orders(1), ids=["10-5"])
    for low in ("10-5", "9-9"):
        with pytest.raises(InvalidArguments, match=rf"the id {low} is not above .* partition 0"):
            await stream.send(*orders(2, 3), ids=[low, "99-0"])
    assert await every(stream) == [[1]]


async def test_a_record_that_does_not_fit_sends_nothing(alone: Link) -> None:
    stream = declare(alone, partitions=2)
    records = orders(0, 1, 2)
    records[1].order_id = "x"  # type: ignore[assignment]
    with pytest.raises(InvalidArguments) as refused:
        await stream.send(*records)
    assert "order_id" in str(refused.value) or "'x'" in str(refused.value)
    assert refused.value.__notes__ == ["it is record 2 of 3"]
    assert await every(stream) == [[], []]


async def test_too_many_for_one_call_are_refused(
    alone: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MAX_RECORDS", 5)
    stream = declare(alone, partitions=2, size=2)
    with pytest.raises(InvalidArguments, match="6 records in one call, the limit is 5: use send_"):
        await stream.send(*orders(*range(6)))
    with pytest.raises(InvalidArguments, match=r"3 records .* the partition 0 .* which holds 2"):
        await stream.send(*orders(0, 2, 4))


@pytest.mark.row("R05", "R45")
async def test_many_are_sent_in_order_with_progress(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "CHUNK", 100)
    stream = declare(link, partitions=3)
    told: list[int] = []
    made = (Order(order_id=number) for number in range(1_050))
    assert await stream.send_many(made, progress=told.append) == 1_050
    assert told == [*range(100, 1_001, 100), 1_050]
    assert await every(stream) == [list(range(at, 1_050, 3)) for at in range(3)]


async def test_many_from_an_async_source(alone: Link) -> None:
    async def source() -> AsyncIterator[Order]:
        for number in range(10):
            await asyncio.sleep(0)
            yield Order(order_id=number)

    stream = declare(alone, partitions=1)
    assert await stream.send_many(source()) == 10
    assert await every(stream) == [list(range(10))]


async def test_many_hold_few_in_memory(alone: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is asked for the next thousand only when the last one but one has arrived."""
    monkeypatch.setattr(batch, "CHUNK", 10)
    stream = declare(alone, partitions=2)
    made = 0
    ahead: list[int] = []

    def source() -> Iterator[Order]:
        nonlocal made
        for number in range(200):
            made += 1
            yield Order(order_id=number)

    await stream.send_many(source(), progress=lambda sent: ahead.append(made - sent))
    assert max(ahead) <= 20


async def test_bytes_end_a_chunk_too(alone: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CHUNK_BYTES", 1_000)
    stream = declare(alone, partitions=1)
    told: list[int] = []
    made = (Order(order_id=number, note="x" * 600) for number in range(5))
    await stream.send_many(made, progress=told.append)
    assert told == [2, 4, 5]


async def test_all_before_what_fails_are_sent(alone: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CHUNK", 4)

    def source() -> Iterator[Order]:
        yield from orders(*range(10))
        raise LookupError("no more")

    stream = declare(alone, partitions=1)
    with pytest.raises(LookupError) as failed:
        await stream.send_many(source())
    assert failed.value.__notes__ == ["10 records were sent"]
    bad = orders(10, 11, 12)
    bad[2].note = 7  # type: ignore[assignment]
    with pytest.raises(InvalidArguments, match="note") as refused:
        await stream.send_many(bad)
    assert refused.value.__notes__ == ["it is record 3", "2 records were sent"]
    assert await every(stream) == [list(range(12))]


@pytest.mark.row("R06")
async def test_a_full_partition_makes_senders_wait(link: Link) -> None:
    stream = declare(link, partitions=2, size=3)
    log = stream.keys.log(0)
    await link.command("XGROUP", "CREATE", log, "p", "0", "MKSTREAM")
    await stream.send(*orders(0, 2, 4))
    with pytest.raises(StreamFull, match=r"no room in the partition 0 after 0.05 s: 3 events"):
        await stream.send(*orders(6, 1), timeout_s=0.05)
    assert await every(stream) == [[0, 2, 4], [1]], "what has room is sent, and nothing is dropped"
    waiting = asyncio.create_task(stream.send(*orders(6)))
    await link.command("XREADGROUP", "GROUP", "p", "c", "COUNT", 2, "STREAMS", log, ">")
    first, second = (id for id, _ in (await entries(stream, 0))[:2])
    assert not waiting.done(), "what was read is not yet acknowledged"
    await link.command("XACK", log, "p", first, second)
    await asyncio.wait_for(waiting, 5)
    assert (await every(stream))[0][-2:] == [4, 6]
    assert await dropped(stream, 0) == 0


@pytest.mark.row("R06")
async def test_a_full_partition_drops_and_counts(link: Link) -> None:
    stream = declare(link, partitions=2, size=3, full="drop_oldest")
    await stream.send(*orders(0, 2, 4))
    await stream.send(*orders(6, 8))
    await stream.send(*orders(10))
    assert (await every(stream))[0] == [6, 8, 10]
    assert await dropped(stream, 0) == 3


@pytest.mark.row("R06")
async def test_what_was_acknowledged_makes_room_uncounted(alone: Link) -> None:
    stream = declare(alone, partitions=1, size=10, full="drop_oldest")
    log = stream.keys.log(0)
    await alone.command("XGROUP", "CREATE", log, "p", "0", "MKSTREAM")
    for number in range(50):
        await stream.send(*orders(number))
        ((_, found),) = await alone.command("XREADGROUP", "GROUP", "p", "c", "STREAMS", log, ">")
        await alone.command("XACK", log, "p", *(id for id, _ in found))
    assert await dropped(stream, 0) == 0
    assert len(await entries(stream, 0)) <= 10


@pytest.mark.row("R04")
@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"partitions": 5}, "has 4 partitions, and is declared here with 5"),
        ({"hasher": "crc32"}, r"was filled by the hasher '.*in_turn', .* here with 'crc32'"),
        ({"partitions": 2, "hasher": None}, "has 4 partitions.*; it was filled by the hasher"),
    ],
)
async def test_another_declaration_is_refused(
    link: Link, other: dict[str, Any], reason: str
) -> None:
    await agree(declare(link, partitions=4))
    changed = declare(link, **({"partitions": 4} | other))
    with pytest.raises(ConfigurationError, match=f"the stream orders {reason}"):
        await agree(changed)
    with pytest.raises(ConfigurationError, match=reason):
        await changed.send(*orders(1))
    assert await every(changed) == [[]] * changed.partitions


@pytest.mark.row("R07")
async def test_another_codec_is_no_reason_to_refuse(alone: Link) -> None:
    await declare(alone, partitions=1).send(*orders(1))
    changed = declare(alone, partitions=1, codec="msgpack")
    await changed.send(*orders(2))
    assert await every(changed) == [[1, 2]]
    assert await alone.command("HGET", changed.keys.meta, "codec") == b"msgpack"


async def test_a_server_that_is_away(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    link = Link(RedisSettings(url=server.url, connect_timeout_s=1.0, timeout_s=1.0))
    stream = declare(link, partitions=2)
    await stream.send(*orders(0))
    server.stop()
    for records in (orders(1), orders(1, 2)):
        with pytest.raises(BrokerUnavailable):
            await stream.send(*records)
    with pytest.raises(BrokerUnavailable) as failed:
        await stream.send_many(orders(1, 2))
    assert failed.value.__notes__ == ["0 records were sent"]
    server.start()
    await stream.send(*orders(1, 2))
    assert await every(stream) == [[2], [1]]
    await link.close()


@pytest.mark.row("R05")
async def test_threads_send_without_a_loop(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CHUNK", 100)
    stream = declare(link, partitions=3, size=200)
    told: list[int] = []

    def work() -> tuple[list[str], int]:
        ids = stream.sync_send(*orders(0, 1), ids=["1-1", "1-2"])
        made = (Order(order_id=number) for number in range(2, 550))
        return ids, stream.sync_send_many(made, progress=told.append)

    assert await asyncio.to_thread(work) == (["1-1", "1-2"], 548)
    assert told == [100, 200, 300, 400, 500, 548]
    assert await every(stream) == [list(range(at, 550, 3)) for at in range(3)]
    with pytest.raises(StreamFull):
        await asyncio.to_thread(stream.sync_send, *orders(*range(0, 300, 3)), timeout_s=0.02)
    other = declare(link, partitions=4)
    with pytest.raises(ConfigurationError, match="declared here with 4"):
        await asyncio.to_thread(other.sync_send, *orders(1))

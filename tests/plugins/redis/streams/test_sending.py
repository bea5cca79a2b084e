"""Sending to real servers: order, atomicity, room, and what all senders must agree on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from chancy.errors import BrokerUnavailable, ConfigurationError, InvalidArguments
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.producing import batch
from chancy.plugins.redis.streams.producing.batch import StreamFull
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams.orders import Order, declare, entries, every, orders
from tests.support.redis_fixtures import RedisServer


@pytest.mark.row("R05", "R45")
async def test_records_are_in_their_partitions_in_order(link: RedisClient) -> None:
    stream = declare(link, partitions=4)
    ids = await stream.send(*orders(*range(10)))
    assert await every(stream) == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert [id for id, _ in await entries(stream, 0)] == [ids[0], ids[4], ids[8]]


@pytest.mark.row("R05")
async def test_one_record_and_none(alone: RedisClient) -> None:
    stream = declare(alone, partitions=2)
    assert await stream.send() == []
    (id,) = await stream.send(Order(order_id=3))
    assert await entries(stream, 1) == [(id, 3)]


@pytest.mark.row("R42")
async def test_a_connection_that_the_server_closed_meanwhile_is_not_used(
    own_redis: Callable[..., RedisServer],
) -> None:
    server = own_redis()
    link = RedisClient(RedisSettings(url=server.url, prefix="t:"))
    stream = declare(link, partitions=2)
    await asyncio.gather(*(stream.send(Order(order_id=number)) for number in range(4)))
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)
    for number in range(4):
        await stream.send(Order(order_id=number))
    assert await every(stream) == [[0, 2], [1, 3]]
    await link.close()


@pytest.mark.row("R05")
async def test_ids_of_the_caller_are_kept(link: RedisClient) -> None:
    stream = declare(link, partitions=2)
    given = ["1-1", "1-2", "2-0"]
    assert await stream.send(*orders(0, 1, 2), ids=given) == given
    assert await entries(stream, 0) == [("1-1", 0), ("2-0", 2)]


@pytest.mark.row("R05")
@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (["1-1"], "1 ids for 3 records"),
        (["1-1", "1-2", "1-3", "1-4"], "4 ids for 3 records"),
        (["1-1", "1-2", "1-2"], "the id 1-2 is not above 1-2"),
        (["0-0", "1-2", "1-3"], "the id 0-0 is not above 0-0: ids must rise, from 0-1 on"),
        (["1-1", "*", "1-3"], r"'\*' is not a valid event id"),
        (["1-1", "2", "3"], "'2' is not a valid event id"),
    ],
)
async def test_ids_that_cannot_be_are_refused(
    alone: RedisClient, ids: list[str], reason: str
) -> None:
    stream = declare(alone, partitions=2)
    with pytest.raises(InvalidArguments, match=reason):
        await stream.send(*orders(0, 1, 2), ids=ids)
    assert await every(stream) == [[], []]


async def test_an_id_below_those_of_the_log_writes_nothing(alone: RedisClient) -> None:
    stream = declare(alone, partitions=1)
    await stream.send(*orders(1), ids=["10-5"])
    for low in ("10-5", "9-9"):
        with pytest.raises(InvalidArguments, match=rf"the id {low} is not above .* partition 0"):
            await stream.send(*orders(2, 3), ids=[low, "99-0"])
    assert await every(stream) == [[1]]


async def test_a_record_that_does_not_fit_sends_nothing(alone: RedisClient) -> None:
    stream = declare(alone, partitions=2)
    records = orders(0, 1, 2)
    records[1].order_id = "x"  # type: ignore[assignment]
    with pytest.raises(InvalidArguments) as refused:
        await stream.send(*records)
    assert "order_id" in str(refused.value) or "'x'" in str(refused.value)
    assert refused.value.__notes__ == ["this is record 2 of 3"]
    assert await every(stream) == [[], []]


async def test_too_many_for_one_call_are_refused(
    alone: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MAX_RECORDS", 5)
    stream = declare(alone, partitions=2, size=2)
    with pytest.raises(InvalidArguments, match="6 records in one call, the limit is 5: use send_"):
        await stream.send(*orders(*range(6)))
    with pytest.raises(InvalidArguments, match=r"3 records .* the partition 0 .* which holds 2"):
        await stream.send(*orders(0, 2, 4))


async def test_too_many_bytes_for_one_call_are_refused(
    alone: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "MAX_BYTES", 10_000)
    stream = declare(alone, partitions=2)
    large = [Order(order_id=number, note="x" * 3_000) for number in range(6)]
    reason = r"the first 4 of 6 records have 12,.*use send_many"
    with pytest.raises(InvalidArguments, match=reason):
        await stream.send(*large)
    with pytest.raises(InvalidArguments, match=reason):
        await asyncio.to_thread(stream.sync_send, *large)
    assert await every(stream) == [[], []]
    # A single record has a limit of its own.
    await stream.send(*large[:3])
    await stream.send(Order(order_id=6, note="x" * 20_000))
    assert await stream.send_many(large[3:]) == 3
    assert await every(stream) == [[0, 2, 6, 4], [1, 3, 5]]


@pytest.mark.row("R05", "R45")
async def test_many_are_sent_in_order_with_progress(
    link: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "CHUNK", 100)
    stream = declare(link, partitions=3)
    told: list[int] = []
    made = (Order(order_id=number) for number in range(1_050))
    assert await stream.send_many(made, progress=told.append) == 1_050
    assert told == [*range(100, 1_001, 100), 1_050]
    assert await every(stream) == [list(range(at, 1_050, 3)) for at in range(3)]


async def test_many_from_an_async_source(alone: RedisClient) -> None:
    async def source() -> AsyncIterator[Order]:
        for number in range(10):
            await asyncio.sleep(0)
            yield Order(order_id=number)

    stream = declare(alone, partitions=1)
    assert await stream.send_many(source()) == 10
    assert await every(stream) == [list(range(10))]


async def test_many_hold_few_in_memory(alone: RedisClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source is read for the next thousand only after the batch before last has arrived."""
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


async def test_bytes_end_a_chunk_too(alone: RedisClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "CHUNK_BYTES", 1_000)
    stream = declare(alone, partitions=1)
    told: list[int] = []
    made = (Order(order_id=number, note="x" * 600) for number in range(5))
    await stream.send_many(made, progress=told.append)
    assert told == [2, 4, 5]


async def test_all_before_what_fails_are_sent(
    alone: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert refused.value.__notes__ == ["this is record 3", "2 records were sent"]
    assert await every(stream) == [list(range(12))]


async def test_an_unavailable_server(own_redis: Callable[..., RedisServer]) -> None:
    server = own_redis()
    link = RedisClient(RedisSettings(url=server.url))
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
async def test_threads_send_without_a_loop(
    link: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
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

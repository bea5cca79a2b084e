"""Partitions that are full, sends that wait for room, and what all senders must agree on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

from chancy.errors import ConfigurationError
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.inspection import Inspection
from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.streams.model.schema import agree
from chancy.plugins.redis.streams.producing import batch
from chancy.plugins.redis.streams.producing.backpressure import Backpressure, SendWait
from chancy.plugins.redis.streams.producing.batch import Part, StreamFull
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import Value
from tests.plugins.redis.streams.orders import Order, declare, dropped, entries, every, orders
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually


@pytest.mark.row("R06")
async def test_a_full_partition_makes_senders_wait(link: RedisClient) -> None:
    stream = declare(link, partitions=2, size=3)
    log = stream.keys.log(0)
    await link.command("XGROUP", "CREATE", log, "p", "0", "MKSTREAM")
    await stream.send(*orders(0, 2, 4))
    with pytest.raises(StreamFull, match=r"no room in partition 0 after 0.05 s: 3 events"):
        await stream.send(*orders(6, 1), timeout_s=0.05)
    assert await every(stream) == [[0, 2, 4], [1]], "what has room is sent, and nothing is dropped"
    waiting = asyncio.create_task(stream.send(*orders(6)))
    await link.command("XREADGROUP", "GROUP", "p", "c", "COUNT", 2, "STREAMS", log, ">")
    first, second = (id for id, _ in (await entries(stream, 0))[:2])
    assert not waiting.done(), "what was read is not yet acknowledged"
    await link.command("XACK", log, "p", first, second)
    await asyncio.wait_for(waiting, 30)
    assert (await every(stream))[0][-2:] == [4, 6]
    assert await dropped(stream, 0) == 0


@pytest.mark.row("R06")
async def test_a_full_partition_drops_and_counts(link: RedisClient) -> None:
    stream = declare(link, partitions=2, size=3, full="drop_oldest")
    await stream.send(*orders(0, 2, 4))
    await stream.send(*orders(6, 8))
    await stream.send(*orders(10))
    assert (await every(stream))[0] == [6, 8, 10]
    assert await dropped(stream, 0) == 3


@pytest.mark.row("R06")
async def test_acknowledged_events_make_room_without_being_counted(alone: RedisClient) -> None:
    stream = declare(alone, partitions=1, size=10, full="drop_oldest")
    log = stream.keys.log(0)
    await alone.command("XGROUP", "CREATE", log, "p", "0", "MKSTREAM")
    for number in range(50):
        await stream.send(*orders(number))
        ((_, found),) = await alone.command("XREADGROUP", "GROUP", "p", "c", "STREAMS", log, ">")
        await alone.command("XACK", log, "p", *(id for id, _ in found))
    assert await dropped(stream, 0) == 0
    assert len(await entries(stream, 0)) <= 10


async def test_events_that_were_dropped_unread_are_not_in_the_lag(alone: RedisClient) -> None:
    stream = declare(alone, partitions=1, size=10, full="drop_oldest")
    log = stream.keys.log(0)
    await alone.command("XGROUP", "CREATE", log, "p", "0", "MKSTREAM")
    await stream.send(*orders(*range(10)))
    lags = []
    for count, sent in ((2, 5), (3, 0), (100, 1)):
        await alone.command("XREADGROUP", "GROUP", "p", "c", "COUNT", count, "STREAMS", log, ">")
        await stream.send(*orders(*range(sent)))
        (report,) = await Inspection(stream, "p").report()
        lags.append((report.lag, report.at_least))
    assert lags == [(10, False), (7, False), (1, False)]


async def filled(link: RedisClient, done: int, note: str = "", **options: Any) -> Stream[Order]:
    """A stream of one partition that is full, of which so many events are acknowledged."""
    stream = declare(link, partitions=1, **options)
    log = stream.keys.log(0)
    await link.command("XGROUP", "CREATE", log, "p", "0", "MKSTREAM")
    await stream.send(*(Order(order_id=number, note=note) for number in range(stream.size)))
    read = await link.command("XREADGROUP", "GROUP", "p", "c", "COUNT", done, "STREAMS", log, ">")
    await link.command("XACK", log, "p", *(id for id, _ in read[0][1]))
    return stream


@pytest.mark.row("R06")
@pytest.mark.parametrize("count", [250, 1_000])
@pytest.mark.parametrize("done", [37, 150, 299])
async def test_counted_events_were_not_acknowledged(
    alone: RedisClient, done: int, count: int
) -> None:
    """Also if a node of the log, which Redis frees as a whole, has events of both kinds."""
    stream = await filled(alone, done, size=1_000, full="drop_oldest")
    await stream.send(*orders(*range(1_000, 1_000 + count)))
    left = [number for _, number in await entries(stream, 0)]
    assert left == [*range(1_000 + count - len(left), 1_000 + count)]
    assert await dropped(stream, 0) == max(0, left[0] - done)


@pytest.mark.row("R06")
@pytest.mark.parametrize(("size", "count", "note"), [(250, 210, ""), (230, 180, "x" * 60)])
async def test_there_is_room_where_all_was_acknowledged(
    alone: RedisClient, size: int, count: int, note: str
) -> None:
    """Also if the events are only a part of a node."""
    stream = await filled(alone, size, note, size=size)
    await stream.send(*orders(*range(count)), timeout_s=0)
    assert [number for _, number in await entries(stream, 0)][-count:] == [*range(count)]


@pytest.mark.row("R06")
async def test_large_events_are_trimmed_unread(own_redis: Callable[..., RedisServer]) -> None:
    """The server keeps what a script reads in memory meanwhile."""
    link = RedisClient(RedisSettings(url=own_redis().url, prefix="t:"))
    stream = declare(link, partitions=1, size=150)
    log = stream.keys.log(0)
    for _ in range(150):
        await link.command("XADD", log, "*", "data.json", b"x" * 100_000)
    await link.command("XGROUP", "CREATE", log, "p", "$")
    before = await link.command("INFO", "memory")
    assert await link.run("streams.trim", (log,), (20,)) == 130
    after = await link.command("INFO", "memory")
    assert after["used_memory_peak"] - before["used_memory_peak"] < 1_000_000
    await link.close()


@pytest.mark.row("R04")
@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"partitions": 5}, "has 4 partitions, but is declared here with 5"),
        ({"hasher": "crc32"}, r"was filled by the hasher '.*in_turn', .* here with 'crc32'"),
        ({"partitions": 2, "hasher": None}, "has 4 partitions.*; it was filled by the hasher"),
    ],
)
async def test_another_declaration_is_refused(
    link: RedisClient, other: dict[str, Any], reason: str
) -> None:
    stored = declare(link, partitions=4)
    await agree(link, stored.keys, stored.definition)
    changed = declare(link, **({"partitions": 4} | other))
    with pytest.raises(ConfigurationError, match=f"the stream orders {reason}"):
        await agree(link, changed.keys, changed.definition)
    with pytest.raises(ConfigurationError, match=reason):
        await changed.send(*orders(1))
    assert await every(changed) == [[]] * changed.partitions


@pytest.mark.row("R07")
async def test_another_codec_is_no_reason_to_refuse(alone: RedisClient) -> None:
    await declare(alone, partitions=1).send(*orders(1))
    changed = declare(alone, partitions=1, codec="msgpack")
    await changed.send(*orders(2))
    assert await every(changed) == [[1, 2]]
    assert await alone.command("HGET", changed.keys.meta, "codec") == b"msgpack"


@pytest.mark.parametrize("threaded", [False, True])
async def test_nothing_is_sent_behind_a_batch_that_failed(
    link: RedisClient, monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    """The records that were sent are the first ones, and counted, so a caller can continue."""
    monkeypatch.setattr(batch, "CHUNK", 2)
    stream = declare(link, partitions=2, size=2)
    await link.command("XGROUP", "CREATE", stream.keys.log(0), "p", "0", "MKSTREAM")
    made = orders(0, 2, 4, 6, 1)
    send = partial(stream.sync_send_many, made, timeout_s=0.02)
    with pytest.raises(StreamFull) as failed:
        await (asyncio.to_thread(send) if threaded else stream.send_many(made, timeout_s=0.02))
    assert failed.value.__notes__ == ["2 records were sent"]
    assert await every(stream) == [[0, 2], []]


@pytest.mark.row("R06")
@pytest.mark.parametrize("full", ["block", "drop_oldest"])
async def test_a_row_of_the_outbox_is_appended_though_it_is_larger_than_the_stream_is_now(
    alone: RedisClient, full: str
) -> None:
    """It was written before the size of the stream was reduced; other rows wait behind it."""
    keys = StreamKeys(alone.prefix, "orders")
    given = (keys.log(0), keys.stat(0), keys.relayed(0))
    event: list[Value] = ["data.json", b"1"]
    small: list[Value] = [1, "one", 2, 1, "data.json", b"0"]
    large: list[Value] = [2, "two", 2, 5, *event * 5]
    if full == "block":
        # Only after the log is empty.
        assert await alone.run("streams.relay", given, (1, 3, full, *small, *large)) == [1, 1]
        await alone.command("DEL", keys.log(0))
    else:
        assert await alone.run("streams.relay", given, (1, 3, full, *small)) == [1, 0]
    assert await alone.run("streams.relay", given, (1, 3, full, *large)) == [1, 0]
    assert await alone.command("XLEN", keys.log(0)) == 5


R = TypeVar("R")

NARROW, WIDE = (b"a", b"1"), (b"a", b"2", b"b", b"3")


class Given:
    """Coding and route of encoded entries, all for one partition."""

    name = "given"

    def encode(self, record: Sequence[bytes]) -> Sequence[bytes]:
        return record

    def decode(self, fields: Sequence[bytes]) -> Sequence[bytes]:
        return fields

    def partition(self, record: object, partitions: int) -> int:
        return 0


async def nearly_full(link: RedisClient) -> Stream[Order]:
    """A stream of one partition, with room for one event until `make_room`."""
    stream = declare(link, partitions=2, size=4)
    for number in range(2):
        await link.command("XGROUP", "CREATE", stream.keys.log(number), "p", "0", "MKSTREAM")
    await stream.send(*orders(0, 2, 4))
    return stream


async def make_room(stream: Stream[Order], count: int) -> None:
    link, log = stream.link, stream.keys.log(0)
    found = await link.command("XREADGROUP", "GROUP", "p", "c", "COUNT", count, "STREAMS", log, ">")
    await link.command("XACK", log, "p", *(id for id, _ in found[0][1]))


async def send(stream: Stream[R], *records: R, threaded: bool, timeout_s: float = 30.0) -> None:
    if threaded:
        await asyncio.to_thread(stream.sync_send, *records, timeout_s=timeout_s)
    else:
        await stream.send(*records, timeout_s=timeout_s)


async def waiting(stream: Stream[Order], *ids: int, threaded: bool) -> asyncio.Task[None]:
    """Return once this many sends wait for room."""
    line = stream.backpressure.line(0)
    before = len(line)
    task = asyncio.create_task(send(stream, *orders(*ids), threaded=threaded))
    await eventually(lambda: task.done() or len(line) > before)
    return task


@pytest.mark.row("R05", "R06")
@pytest.mark.parametrize("threaded", [False, True])
async def test_a_later_send_that_would_fit_does_not_pass_one_that_waits_for_room(
    alone: RedisClient, threaded: bool
) -> None:
    stream = await nearly_full(alone)
    first = await waiting(stream, 6, 8, threaded=threaded)
    second = await waiting(stream, 10, threaded=not threaded)
    third = await waiting(stream, 12, threaded=threaded)
    await send(stream, *orders(1), threaded=threaded)
    assert await every(stream) == [[0, 2, 4], [1]], "others have their room"
    await make_room(stream, 1)
    await first
    assert (await every(stream))[0][-2:] == [6, 8]
    assert not second.done()
    await make_room(stream, 2)
    await asyncio.gather(second, third)
    assert (await every(stream))[0] == [6, 8, 10, 12]


@pytest.mark.row("R06")
@pytest.mark.parametrize("threaded", [False, True])
async def test_a_sender_that_gives_up_unblocks_the_next_one_at_once(
    alone: RedisClient, monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    # No send retries unless it is woken.
    monkeypatch.setattr(SendWait, "pause_s", lambda wait: max(0.0, wait.left_s))
    stream = await nearly_full(alone)
    first = await waiting(stream, 6, 8, threaded=False)
    second = await waiting(stream, 10, threaded=threaded)
    with pytest.raises(StreamFull, match=r"after 0\.01 s this send was still queued"):
        await send(stream, *orders(12), threaded=threaded, timeout_s=0.01)
    first.cancel()
    async with asyncio.timeout(25):
        await second
    assert (await every(stream))[0] == [0, 2, 4, 10]


@pytest.mark.row("R06")
async def test_a_send_whose_loop_stands_still_is_not_waited_for_when_its_time_is_over(
    alone: RedisClient,
) -> None:
    stream = await nearly_full(alone)
    other = asyncio.new_event_loop()

    def begin() -> asyncio.Task[list[str]]:
        task = other.create_task(stream.send(*orders(6, 8), timeout_s=0.5))
        # It runs one step at a time until the send is queued, or its time is over already.
        while not stream.backpressure.waited(0) and not task.done():
            other.run_until_complete(asyncio.sleep(0.001))
        return task

    def end() -> None:
        with pytest.raises(StreamFull):
            other.run_until_complete(standing)
        other.run_until_complete(alone.close())
        other.close()

    standing = await asyncio.to_thread(begin)
    await stream.send(*orders(10))
    await asyncio.to_thread(end)
    assert (await every(stream))[0] == [0, 2, 4, 10]


def test_a_send_whose_loop_is_closed_is_passed_over() -> None:
    turns, part = Backpressure(), Part(0, [])
    woken = asyncio.Event()
    gone = SendWait(turns, 60, woken.set, lambda: True)
    gone.join([part])
    there = SendWait(turns, 60, woken.set)
    there.join([part])
    assert there.first() == [part]
    assert gone.first() == []


@pytest.mark.row("R05", "R06")
@pytest.mark.parametrize("threaded", [False, True])
async def test_records_of_one_call_are_appended_together_though_they_have_unlike_fields(
    alone: RedisClient, threaded: bool
) -> None:
    given = Given()
    stream: Stream[Sequence[bytes]] = Stream(
        "given", link=alone, coding=given, route=given, partitions=1, size=4
    )
    log = stream.keys.log(0)
    await alone.command("XGROUP", "CREATE", log, "p", "0", "MKSTREAM")
    await stream.send(NARROW, NARROW)
    with pytest.raises(StreamFull):
        await send(stream, WIDE, WIDE, NARROW, threaded=threaded, timeout_s=0)
    assert await alone.command("XLEN", log) == 2
    sent = await stream.send(WIDE, NARROW, ids=["9000000000000-1", "9000000000000-2"])
    found = await alone.command("XRANGE", log, sent[0], "+")
    assert [(id.decode(), len(fields)) for id, fields in found] == [(sent[0], 2), (sent[1], 1)]

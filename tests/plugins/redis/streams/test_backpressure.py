"""Sends that wait for room in one partition: one behind the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import pytest

from chancy.plugins.redis.streams.producing.backpressure import Backpressure, SendWait
from chancy.plugins.redis.streams.producing.batch import Part, StreamFull
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams.orders import Order, declare, every, orders
from tests.support.waiting import eventually

R = TypeVar("R")

NARROW, WIDE = (b"a", b"1"), (b"a", b"2", b"b", b"3")


class Given:
    """The coding and the route of entries that are written already, all of one partition."""

    name = "given"

    def encode(self, record: Sequence[bytes]) -> Sequence[bytes]:
        return record

    def decode(self, fields: Sequence[bytes]) -> Sequence[bytes]:
        return fields

    def partition(self, record: object, partitions: int) -> int:
        return 0


async def nearly_full(link: RedisClient) -> Stream[Order]:
    """A stream of one partition that has room for one more, until `make_room`."""
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
    """A send that has found no room, or another that waits."""
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
    # Nobody looks for room but who is told to.
    monkeypatch.setattr(SendWait, "pause_s", lambda wait: max(0.0, wait.left_s))
    stream = await nearly_full(alone)
    first = await waiting(stream, 6, 8, threaded=False)
    second = await waiting(stream, 10, threaded=threaded)
    with pytest.raises(StreamFull, match=r"after 0\.01 s this send was still queued"):
        await send(stream, *orders(12), threaded=threaded, timeout_s=0.01)
    first.cancel()
    async with asyncio.timeout(10):
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
        # It runs only so long: a step at a time, until the send is in line.
        while not stream.backpressure.waited(0):
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

"""The end of an ownership follows the last exchange of a partition; idle partitions are watched."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from functools import partial
from typing import Any

import pytest

from chancy.plugins.redis.streams.group.waiter import Waiter
from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.streams.model.policy import Ignore, Quarantine
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport import blocking_reads
from chancy.plugins.redis.transport.connection import RedisConnection
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import Value
from tests.plugins.redis.streams.fleet import Order, fleet, orders_of
from tests.plugins.redis.trips import Calls, Send, around
from tests.support.waiting import eventually


class SlowExchanges:
    """Delays exchanges, and counts other scripts of the same partition meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: str) -> None:
        self.beside = 0
        self.ended = 0
        under_way = Counter[Value]()

        async def slow(calls: Calls, send: Send) -> list[Any]:
            for one in calls:
                if one.script in ends:
                    self.ended += 1
                    self.beside += under_way[one.keys[0]] > 0
            keys = [one.keys[0] for one in calls if one.script == "streams.exchange"]
            under_way.update(keys)
            try:
                if keys:
                    await asyncio.sleep(0.03)  # longer than acknowledgements wait for others
                return await send()
            finally:
                under_way.subtract(keys)

        around(monkeypatch, slow)


async def unhurried(worker: int, events: Events[Order]) -> None:
    """Acknowledge events while the previous exchange is in flight."""
    async for order in events.records():
        if order.seq == 10:
            raise ValueError(f"order {order.seq}")
        await asyncio.sleep(0.004)


@pytest.mark.row("R30", "R32")
async def test_a_partition_is_released_behind_what_is_on_its_way(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the exchange for which a release waits has ended, the next may start at once."""
    exchanges = SlowExchanges(monkeypatch, "streams.release")
    async with fleet(redis_url, partitions=1, handler=unhurried) as crew:
        worker = await crew.settle()
        runner = worker.executor.runner
        (lane,) = runner.partitions
        await crew.send(11, 1_000)
        # One exchange is in flight, and there are acknowledgements for the next.
        await eventually(lambda: lane.fetching and lane.acked)
        await crew.stop(worker)
        assert exchanges.ended
        assert exchanges.beside == 0
        assert runner.counters.fenced == 0


@pytest.mark.row("R20")
async def test_a_partition_is_quarantined_behind_what_is_on_its_way(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise finished events would be refused and delivered again."""
    exchanges = SlowExchanges(monkeypatch, "streams.park")

    options = {"policy": Quarantine()}
    async with fleet(redis_url, partitions=1, handler=unhurried, options=options) as crew:
        worker = await crew.settle()
        await crew.send(0, 12)
        await eventually(lambda: worker.executor.runner.parked == {0})
        assert exchanges.ended
        assert exchanges.beside == 0
        assert worker.executor.runner.counters.fenced == 0


@pytest.mark.row("R20")
async def test_acknowledgements_sent_with_a_quarantine_are_counted_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The fetcher is asked to send it just when the partition is parked."""
    park = Ownership.park

    async def parked(ownership: Ownership, lane: OwnedPartition[Any], error: BaseException) -> bool:
        done = await park(ownership, lane, error)
        assert lane.acked
        lane.flush = True
        lane.poke(lane)
        return done

    monkeypatch.setattr(Ownership, "park", parked)
    options = {"policy": Quarantine()}
    async with fleet(redis_url, partitions=1, bad={5}, options=options) as crew:
        worker = await crew.settle()
        await crew.send(0, 10)
        await eventually(lambda: worker.executor.runner.parked == {0})
        await eventually(lambda: not worker.executor.runner.partitions)
        meter = worker.executor.runner.counters
        assert (meter.acked, meter.fenced) == (5, 0)
        assert await crew.pending() == 5
        assert "partition_lost" not in caplog.text


@pytest.mark.row("R06", "R11")
async def test_many_pending_events_that_are_gone_are_passed_over_at_once(
    alone: RedisClient,
) -> None:
    """The number of events exceeds what Lua unpacks."""
    keys, count = StreamKeys(alone.prefix, "orders"), 9_000
    own, log, stat = keys.own(0, "handle"), keys.log(0), keys.stat(0)
    for _ in range(count // 1_000):
        run: list[Value] = [2, 1_000, *["a", "b"] * 1_000]
        await alone.run("streams.send", (log, stat), (count, "block", "count", 0, *run))
    taking = (own, log, keys.park(0, "handle"), stat), ("handle", "me", 60_000, "0")
    assert (await alone.run("streams.acquire", *taking))[:2] == [b"owned", 1]
    exchange = (own, log, stat), ("handle", "me", 1, count)
    assert (
        len(
            (await alone.run("streams.exchange", exchange[0], (*exchange[1], ">", 1, 1_000_000)))[1]
        )
        == count
    )
    await alone.command("XTRIM", log, "MAXLEN", 0)
    read = await alone.run("streams.exchange", exchange[0], (*exchange[1], "0-0", 2, 1_000_000))
    assert (read[1], len(read[2])) == ([], count)
    assert (await alone.command("XPENDING", log, "handle"))["pending"] == 0


@pytest.mark.row("R16")
async def test_a_read_ends_at_large_events_behind_small_ones(alone: RedisClient) -> None:
    """Events larger than the mean of earlier ones; a step reads at most 32."""
    keys, small, large = StreamKeys(alone.prefix, "orders"), 40, 60
    own, log, stat = keys.own(0, "handle"), keys.log(0), keys.stat(0)
    run: list[Value] = [2, small + large, *["a", "b"] * small, *["a", "b" * 10_000] * large]
    await alone.run("streams.send", (log, stat), (1_000, "block", "count", 0, *run))
    taking = (own, log, keys.park(0, "handle"), stat), ("handle", "me", 60_000, "0")
    assert (await alone.run("streams.acquire", *taking))[:2] == [b"owned", 1]
    numbers = itertools.count(1)

    async def read(cursor: str) -> tuple[list[str], bool]:
        args = ("handle", "me", 1, 1_000, cursor, next(numbers), 5_000)
        _, entries, _, more = await alone.run("streams.exchange", (own, log, stat), args)
        return [xid.decode() for xid, _ in entries], bool(more)

    parts = [await read(">")]
    while parts[-1][1]:
        parts.append(await read(">"))
    everything = [xid.decode() for xid, _ in await alone.command("XRANGE", log, "-", "+")]
    assert [xid for xids, _ in parts for xid in xids] == everything, "each once, in order"
    assert len(parts[0][0]) <= small + 32
    assert {len(xids) for xids, _ in parts[1:-1]} == {1}
    again, more = await read("0-0")
    assert again == parts[0][0], "entries of a lost reply too"
    assert more
    assert await read(again[-1]) == ([everything[len(again)]], True)


@pytest.mark.row("R18", "R21")
async def test_a_large_batch_becomes_dead_letters_in_several_scripts(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is blocked while a script runs."""
    buried = list[int]()

    async def noted(calls: Calls, send: Send) -> list[Any]:
        buried.extend(len(one.args) - 5 for one in calls if one.script == "streams.bury")
        return await send()

    async def refuse(worker: int, events: Events[Order]) -> None:
        async for _ in events.records().take(2_500, within=8):
            raise ValueError("none of them")

    around(monkeypatch, noted)
    options = {"policy": Ignore(keep=True)}
    async with fleet(redis_url, partitions=1, handler=refuse, options=options) as crew:
        await crew.send(0, 2_500)
        worker = await crew.start()
        await eventually(lambda: worker.streams.executors and worker.executor.runner.counters.dead)
        assert buried == [1_000, 1_000, 500]
        assert worker.executor.runner.counters.dead == 2_500
        assert await crew.pending() == 0
        dead = crew.orders.keys.dead(0, "handle")
        assert await crew.orders.link.command("XLEN", dead) == 2_500


def idle(number: int) -> OwnedPartition[Order]:
    """A partition whose log was read to its end."""
    lane = OwnedPartition[Order](
        number,
        1,
        time.monotonic() + 60,
        prefetch=8,
        pending=0,
        last="0-0",
        loop=asyncio.get_running_loop(),
    )
    lane.more = False
    return lane


@pytest.mark.row("R16")
async def test_it_is_waited_for_though_the_read_was_not_on_its_way_yet(
    alone: RedisClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_reads, "_BLOCK_MS", 60_000)
    streams, begun = Streams(alone.settings), asyncio.Event()
    command = RedisConnection.command
    orders = orders_of(streams, 2)

    @streams.processor(orders)
    async def handle(events: Events[Order]) -> None: ...

    async def late(wire: RedisConnection, parts: Any, timeout_s: float) -> Any:
        if parts[0] == "XREAD":
            begun.set()
            await asyncio.sleep(0.05)  # so that it is sent after the command that unblocks it
        return await command(wire, parts, timeout_s)

    monkeypatch.setattr(RedisConnection, "command", late)
    lanes = [idle(0)]
    waiter = Waiter(alone, streams.processors[0], lambda: lanes)
    serving = asyncio.create_task(waiter.serve())
    try:
        await begun.wait()
        lanes.append(idle(1))
        waiter.check()
        await asyncio.sleep(0.1)  # it has been sent, and blocks for a minute unless unblocked
        await alone.command("XADD", orders.keys.log(1), "*", "a", "b")
        await eventually(lambda: lanes[1].more)
        assert not lanes[0].more
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def test_each_processor_of_a_stream_is_woken_by_the_entries_that_it_has_not_read(
    alone: RedisClient,
) -> None:
    streams = Streams(alone.settings)
    orders = orders_of(streams, 1)
    log = orders.keys.log(0)

    async def handle(_: Events[Order]) -> None: ...

    lanes, waiters = [idle(0), idle(0)], list[Waiter]()
    for name, lane in zip("ab", lanes, strict=True):
        streams.processor(orders, name=name)(handle)
        waiters.append(Waiter(alone, streams.processors[-1], partial(list, [lane])))
    first, second = lanes

    def wait_after(last: str, *chosen: OwnedPartition[Order]) -> None:
        for lane in chosen:
            lane.last, lane.more = last, False
        for waiter in waiters:
            waiter.check()

    serving = [asyncio.create_task(waiter.serve()) for waiter in waiters]
    try:
        xid = await alone.command("XADD", log, "*", "a", "b")
        await eventually(lambda: first.more and second.more)
        wait_after(xid.decode(), *lanes)
        xid = await alone.command("XADD", log, "*", "a", "b")
        await eventually(lambda: first.more and second.more)
        # The first processor has read that entry, and waits for the next one.
        wait_after(xid.decode(), first)
        wait_after("0-0", second)
        await eventually(lambda: second.more)
        assert not first.more
        # The end of one processor does not affect the other.
        serving[1].cancel()
        await asyncio.wait(serving[1:])
        await alone.command("XADD", log, "*", "a", "b")
        await eventually(lambda: first.more)
    finally:
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)

"""What ends a partition's ownership stands behind its last exchange, never beside one."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from chancy.plugins.redis.streams.model.keys import StreamKeys
from chancy.plugins.redis.streams.model.policy import Ignore, Quarantine
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import ScriptCall, Value
from tests.plugins.redis.streams.fleet import Order, fleet
from tests.support.waiting import eventually


class SlowExchanges:
    """Exchanges take a while; what else was sent of a partition meanwhile is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: str) -> None:
        self.beside = 0
        self.ended = 0
        under_way = Counter[Value]()
        call, call_many = RedisClient.run, RedisClient.run_many

        def look(calls: Sequence[ScriptCall]) -> None:
            for one in calls:
                if one.script in ends:
                    self.ended += 1
                    self.beside += under_way[one.keys[0]] > 0

        async def slow_many(link: RedisClient, calls: Sequence[ScriptCall], **more: Any) -> Any:
            look(calls)
            keys = [one.keys[0] for one in calls if one.script == "streams.exchange"]
            under_way.update(keys)
            try:
                if keys:
                    await asyncio.sleep(0.03)  # longer than acknowledgements wait for others
                return await call_many(link, calls, **more)
            finally:
                under_way.subtract(keys)

        async def slow(
            link: RedisClient, script: str, keys: Sequence[Value], args: Any = (), **more: Any
        ) -> Any:
            look([ScriptCall(script, tuple(keys), args)])
            return await call(link, script, keys, args, **more)

        monkeypatch.setattr(RedisClient, "run_many", slow_many)
        monkeypatch.setattr(RedisClient, "run", slow)


async def unhurried(worker: int, events: Events[Order]) -> None:
    """Its acknowledgements come in while the exchange before them is under way."""
    async for order in events.records():
        if order.seq == 10:
            raise ValueError(f"order {order.seq}")
        await asyncio.sleep(0.004)


@pytest.mark.row("R30", "R32")
async def test_a_partition_is_released_behind_what_is_on_its_way(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exchange that ends while the hand-over waits for it may be followed by another at once."""
    exchanges = SlowExchanges(monkeypatch, "streams.release")
    async with fleet(redis_url, partitions=1, handler=unhurried) as crew:
        worker = await crew.settle()
        runner = worker.executor.runner
        (lane,) = runner.partitions
        await crew.send(11, 40)
        # One is under way, and the next has something to carry.
        await eventually(lambda: lane.fetching and lane.acked)
        await crew.stop(worker)
        assert exchanges.ended
        assert exchanges.beside == 0
        assert runner.counters.fenced == 0


@pytest.mark.row("R20")
async def test_a_partition_is_quarantined_behind_what_is_on_its_way(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what is done and refused would come again."""
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
    """The fetcher is asked to pass it on in the very moment in which the partition is parked."""
    park = Ownership.park

    async def parked(ownership: Ownership, lane: OwnedPartition[Any], error: BaseException) -> bool:
        done = await park(ownership, lane, error)
        assert lane.acked
        lane.flush = True
        lane.poke(lane)
        return done

    async def refuse(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            if order.seq == 5:
                raise ValueError("five")

    monkeypatch.setattr(Ownership, "park", parked)
    options = {"policy": Quarantine()}
    async with fleet(redis_url, partitions=1, handler=refuse, options=options) as crew:
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
    """As many as were asked for: more than Lua unpacks."""
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
    """Those that the mean of earlier events does not foresee; a step has at most 32."""
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
    """A server does nothing else while a script runs."""
    buried, call = list[int](), RedisClient.run

    async def noted(
        link: RedisClient, script: str, keys: Sequence[Value], args: Any = (), **more: Any
    ) -> Any:
        if script == "streams.bury":
            buried.append(len(args) - 5)
        return await call(link, script, keys, args, **more)

    async def refuse(worker: int, events: Events[Order]) -> None:
        async for _ in events.records().take(2_500, within=5):
            raise ValueError("none of them")

    monkeypatch.setattr(RedisClient, "run", noted)
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

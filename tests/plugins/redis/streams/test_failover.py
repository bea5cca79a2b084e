"""Servers that fail over, lose groups, are full or do not reply, while workers run."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.plugins.redis.streams.model.policy import Ignore
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Options, Processor
from tests.plugins.redis.streams.fleet import Fleet, Order, fleet
from tests.plugins.redis.streams.shards import tell
from tests.plugins.redis.trips import Calls, Send, around
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

#: Events may be delivered again: a busy machine may stand still for longer than a lease.
QUICK = {"lease_s": 1.0, "check_s": 0.2}


async def persist(crew: Fleet, first: int, count: int) -> None:
    """Send until it succeeds; events of sends with an unknown outcome may be stored twice."""

    async def sent() -> bool:
        try:
            await crew.send(first, count)
        except BrokerUnavailable:
            return False
        return True

    await eventually(sent)


async def seen(crew: Fleet, count: int) -> None:
    await eventually(lambda: set(crew.numbers) >= set(range(count)))
    await eventually(crew.idle)


def check(crew: Fleet) -> None:
    """The first deliveries of each key are in order, whatever was delivered again."""
    first: dict[int, list[int]] = defaultdict(list)
    for one in crew.seen:
        if one.order.seq not in first[one.order.key]:
            first[one.order.key].append(one.order.seq)
    for key, seqs in first.items():
        assert seqs == sorted(seqs), f"key {key}"


@pytest.mark.row("R42")
async def test_workers_follow_a_failover(own_redis: Callable[..., RedisServer]) -> None:
    primary, replica = (own_redis(repl_diskless_sync_delay="0") for _ in range(2))
    tell(replica, "REPLICAOF", "127.0.0.1", primary.port)

    def linked() -> bool:
        info = tell(replica, "INFO", "replication")
        return isinstance(info, dict) and info["master_link_status"] == "up"

    with Proxy("127.0.0.1", primary.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/0"
        async with fleet(url, partitions=4, batch=11, options=QUICK) as crew:
            await crew.start()
            await crew.start()
            await eventually(linked)
            await crew.send(0, 300)
            await seen(crew, 300)
            await crew.send(300, 300)
            assert await crew.orders.link.command("WAIT", 1, 10_000) == 1
            primary.kill()
            tell(replica, "REPLICAOF", "NO", "ONE")
            proxy.target = ("127.0.0.1", replica.port)
            await asyncio.to_thread(proxy.cut)
            await persist(crew, 600, 300)
            await seen(crew, 900)
            await eventually(crew.settled)
            check(crew)


@pytest.mark.row("R42")
async def test_acknowledgements_that_a_failover_has_lost_are_repeated(redis_url: str) -> None:
    """The events would stay pending with their owner, and fill up the partition."""
    async with fleet(redis_url, partitions=1, options={"check_s": 0.2}) as crew:
        worker = await crew.settle()
        await crew.send(0, 10)
        await seen(crew, 10)
        link, log = crew.orders.link, crew.orders.keys.log(0)
        xids = [xid for xid, _ in await link.command("XRANGE", log, "-", "+")]
        # As on a replica that has not received the last acknowledgements.
        claimed = await link.command("XCLAIM", log, "handle", "e1", 0, *xids[4:], "FORCE")
        assert len(claimed) == 6
        await eventually(crew.idle)
        assert crew.numbers == list(range(10))
        (lane,) = worker.executor.runner.partitions
        assert lane.epoch == 1


@pytest.mark.row("R42")
@pytest.mark.parametrize("in_hand", [False, True])
async def test_events_with_lower_ids_after_a_failover_are_acknowledged_once_processed(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, in_hand: bool
) -> None:
    """The replica lacked the last events, and its clock is behind; one of them may still run."""
    ended, go_on, rounds = asyncio.Event(), asyncio.Event(), list[int]()
    if not in_hand:
        ended.set()

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            crew.note(worker, events, order)
            if order.seq == 2:
                await ended.wait()
            if order.seq == 3:
                await go_on.wait()

    async def noted(calls: Calls, send: Send) -> list[Any]:
        rounds.extend(1 for call in calls if call.script == "streams.trim")
        return await send()

    around(monkeypatch, noted)
    options = {"check_s": 0.2}
    async with fleet(redis_url, partitions=1, handler=handle, options=options) as crew:
        worker = await crew.settle()
        (lane,) = worker.executor.runner.partitions
        link, log = crew.orders.link, crew.orders.keys.log(0)
        sent = [Order(key=0, seq=seq) for seq in range(4)]
        await crew.orders.send(sent[0], ids=["1-1"])
        await seen(crew, 1)
        replica = await link.command("DUMP", log)
        await crew.orders.send(*sent[1:3], ids=["1-5", "1-6"])
        await eventually(lambda: crew.numbers == [0, 1, 2])
        if not in_hand:
            await eventually(crew.idle)
        await link.command("RESTORE", log, 0, replica, "REPLACE")
        await crew.orders.send(sent[3], ids=["1-3"])
        lane.more = True
        lane.poke(lane)
        if in_hand:
            await eventually(lambda: lane.lowered == "1-3")
            ended.set()
        await eventually(lambda: crew.numbers == [0, 1, 2, 3])
        before = len(rounds)
        await eventually(lambda: len(rounds) > before + 2)
        assert await crew.pending() == 1
        go_on.set()
        await eventually(crew.idle)


@pytest.mark.row("R42")
async def test_writes_that_are_refused_for_a_while_interrupt_no_event(
    own_redis: Callable[..., RedisServer],
) -> None:
    """As by a primary with `min-replicas-to-write` that has lost its replicas."""
    go_on = asyncio.Event()

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            crew.note(worker, events, order)
            if order.seq == 1:
                await go_on.wait()

    options = {"lease_s": 60.0}
    async with fleet(own_redis().url, partitions=1, handler=handle, options=options) as crew:
        worker = await crew.settle()
        (lane,) = worker.executor.runner.partitions
        link = crew.orders.link
        await crew.send(0, 1)
        await eventually(crew.idle)
        await crew.send(1, 1)
        await eventually(lambda: crew.numbers == [0, 1])
        await link.command("CONFIG", "SET", "min-replicas-to-write", 1)
        exchanges = lane.exchanges
        # Something to acknowledge.
        lane.acked.append("0-1")
        lane.flush = True
        lane.poke(lane)
        await eventually(lambda: lane.exchanges > exchanges + 1)
        await link.command("CONFIG", "SET", "min-replicas-to-write", 0)
        go_on.set()
        await eventually(crew.idle)
        assert crew.numbers == [0, 1]
        assert not lane.lost


@pytest.mark.row("R42")
async def test_groups_that_are_gone_are_made_again(redis_url: str) -> None:
    async with fleet(redis_url, partitions=2, options=QUICK) as crew:
        await crew.settle()
        await crew.send(0, 200)
        await seen(crew, 200)
        crew.seen.clear()
        for partition in range(2):
            log = crew.orders.keys.log(partition)
            await crew.orders.link.command("XGROUP", "DESTROY", log, "handle")
        await crew.send(200, 100)
        # Its position is lost, so it begins with all stored events.
        await seen(crew, 300)
        check(crew)


@pytest.mark.row("R42", "R30")
async def test_a_line_that_swallows_everything_costs_neither_events_nor_order(
    own_redis: Callable[..., RedisServer],
) -> None:
    server = own_redis()
    with Proxy("127.0.0.1", server.port) as proxy:
        behind = f"redis://127.0.0.1:{proxy.port}/0"
        async with (
            fleet(behind, partitions=4, options=QUICK) as cut_off,
            fleet(server.url, partitions=4, options=QUICK) as crew,
        ):
            cut_off.seen = crew.seen
            await cut_off.start()
            await eventually(cut_off.settled)
            await crew.send(0, 300)
            await seen(crew, 300)
            await crew.start()
            await eventually(lambda: len(crew.workers) and _owned(cut_off, crew) == (2, 2))
            proxy.black_hole()
            await crew.send(300, 300)
            await eventually(lambda: _owned(cut_off, crew) == (0, 4))
            await seen(crew, 600)
            await asyncio.to_thread(proxy.heal)
            await eventually(lambda: _owned(cut_off, crew) == (2, 2), timeout=30)
            await crew.send(600, 300)
            await seen(crew, 900)
            check(crew)


def _owned(*crews: Fleet) -> tuple[int, ...]:
    return tuple(sum(len(one.owned) for one in crew.workers.values()) for crew in crews)


async def test_events_are_processed_on_a_full_server(
    own_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    """Also at the start and the stop of a worker."""

    options = {"policy": Ignore(keep=True)}
    server = own_redis(maxmemory_policy="noeviction")
    async with fleet(server.url, partitions=2, bad={3}, options=options) as crew:
        link, keys = crew.orders.link, crew.orders.keys
        await crew.send(0, 20, keys=2)
        await link.command("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StatementFailed, match="Redis is full"):
            await crew.send(20, 1)
        worker = await crew.start()
        await eventually(lambda: len(crew.seen) == 19)

        await eventually(crew.idle)
        assert sorted(crew.numbers) == [number for number in range(20) if number != 3]
        assert await link.command("XLEN", keys.dead(1, "handle")) == 1
        await crew.stop(worker)
        assert await link.command("ZCARD", keys.members("handle")) == 0
        assert "stream_tell_failed" not in caplog.text

        async def nothing(_: object) -> None: ...

        processor = Processor(crew.orders, nothing, name="handle", options=Options(lease_s=60.0))
        ownership = Ownership(link, processor, "another")
        for partition in (await ownership.acquire([0, 1])).values():
            # The worker has released it.
            assert isinstance(partition, OwnedPartition)
            deadline, partition.deadline = partition.deadline, -math.inf
            assert await ownership.extend([partition]) == []
            assert partition.deadline > deadline
            assert await ownership.halt(partition, "because")
            assert await ownership.park(partition, RuntimeError("because"))
        lead: Any = await link.run("streams.lead", ["{t:st}:lead"], ["another", 1_000])
        assert lead == 1

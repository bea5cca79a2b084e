"""Order and count: each event once while all is well, in order by key, at any size."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.streams.processing.events import Events
from tests.plugins.redis.streams.fleet import Fleet, Order, fleet
from tests.plugins.redis.streams.shards import tell
from tests.plugins.redis.streams.witness import witness
from tests.plugins.redis.trips import Calls, Send, around
from tests.support.redis_fixtures import RedisClusterServers
from tests.support.waiting import eventually

EVENTS = 333


@pytest.mark.row("R12", "R13")
@pytest.mark.parametrize(
    ("partitions", "prefetch", "batch", "workers"),
    [(1, 1, 1, 3), (8, 1, 24, 1), (8, 50, 24, 3)],
)
async def test_each_event_is_seen_once_and_in_order_by_key(
    place: dict[str, Any], partitions: int, prefetch: int, batch: int, workers: int
) -> None:
    async with fleet(
        **place, partitions=partitions, batch=batch, options={"prefetch": prefetch}
    ) as crew:
        for _ in range(workers):
            await crew.start()
        await crew.send(0, EVENTS)
        await eventually(lambda: len(crew.seen) >= EVENTS)
        await eventually(crew.idle)
        assert sorted(crew.numbers) == list(range(EVENTS))
        assert crew.out_of_order() == []


@pytest.mark.row("R12", "R45")
async def test_each_event_is_seen_once_in_a_cluster(
    redis_cluster: str, redis_cluster_servers: RedisClusterServers
) -> None:
    async with fleet(redis_cluster, cluster=True, partitions=12, batch=11) as crew:
        for _ in range(3):
            await crew.start()
        await crew.send(0, EVENTS)
        await eventually(lambda: len(crew.seen) >= EVENTS)
        await eventually(crew.settled)
        logs = [tell(node, "KEYS", "*:log") for node in redis_cluster_servers.nodes]
        assert all(logs), "each node has some of the partitions"
        assert sum(map(len, logs)) == 12
        await eventually(crew.idle)
        assert sorted(crew.numbers) == list(range(EVENTS))
        assert crew.out_of_order() == []


async def _progress(crew: Fleet) -> None:
    enough = len(crew.seen) + 100
    await eventually(lambda: len(crew.seen) > enough)


@pytest.mark.row("R12", "R13", "R15", "R25", "R29")
@pytest.mark.parametrize("batch", [1, 11])
async def test_workers_come_and_go_under_load(place: dict[str, Any], batch: int) -> None:
    """A partition never has two owners, and no worker acknowledges events of another."""
    async with (
        fleet(**place, partitions=8, batch=batch) as crew,
        witness(crew.orders.link, place["url"]) as book,
    ):
        sent = 0
        stop = asyncio.Event()

        async def load() -> None:
            nonlocal sent
            while not stop.is_set():
                await crew.send(sent, 20)
                sent += 20
                await asyncio.sleep(0.01)

        loading = asyncio.create_task(load())
        crewed = [await crew.start()]
        await eventually(crew.settled)
        for change in (+1, +1, -1, -1):
            if change > 0:
                crewed.append(await crew.start())
            else:
                await crew.stop(crewed.pop(0))
            await eventually(crew.settled)
            await _progress(crew)
        stop.set()
        await loading
        await eventually(lambda: len(crew.seen) >= sent)
        await eventually(crew.idle)
        assert sorted(crew.numbers) == list(range(sent))
        assert crew.out_of_order() == []
        await book.catch_up()
        assert book.wrong == []
        assert sum(map(len, book.acked.values())) == sent


@pytest.mark.row("R24")
async def test_only_the_partitions_that_move_pause(place: dict[str, Any]) -> None:
    async with fleet(**place, partitions=8) as crew:
        first = await crew.settle()
        await crew.send(0, 100)
        await eventually(lambda: len(crew.seen) == 100)
        lanes = {lane.number: lane.epoch for lane in first.executor.runner.partitions}
        second = await crew.settle()
        kept = {lane.number: lane.epoch for lane in first.executor.runner.partitions}
        assert len(kept) == len(second.owned) == 4
        assert kept.items() <= lanes.items()


@pytest.mark.row("R28")
async def test_more_workers_than_partitions_stand_by(
    place: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(**place, partitions=2) as crew:
        workers = [await crew.start() for _ in range(3)]
        await eventually(lambda: sum(len(one.owned) for one in workers) == 2)
        await eventually(lambda: sorted(len(one.owned) for one in workers) == [0, 1, 1])
        for worker in [one for one in workers if one.owned]:
            await crew.stop(worker)
        await eventually(crew.settled)
        await crew.send(0, 10)
        await eventually(lambda: sorted(crew.numbers) == list(range(10)))
        assert "stream_executor_failed" not in caplog.text, "it ended, and began anew"


@pytest.mark.row("R16")
async def test_a_slow_partition_holds_up_no_other_and_reads_no_more_than_it_may(
    place: dict[str, Any],
) -> None:
    stuck = asyncio.Event()

    async def slow_at_zero(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            crew.note(worker, events, order)
            if events.partition == 0:
                await stuck.wait()

    async with fleet(
        **place, partitions=2, handler=slow_at_zero, options={"prefetch": 5, "grace_s": 0}
    ) as crew:
        await crew.start()
        await crew.send(0, 100, keys=2)
        await eventually(lambda: sum(one.partition == 1 for one in crew.seen) == 50)
        groups = await crew.groups()
        assert sum(one.partition == 0 for one in crew.seen) == 1
        assert groups[0]["pending"] <= 6


async def test_a_read_that_arrives_after_its_retry_skips_no_events(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a network outage: the kernel retransmits the data of a closed connection."""
    arrived, delayed = asyncio.Event(), list[tuple[Calls, Send]]()

    async def slow(calls: Calls, send: Send) -> list[Any]:
        reads = any(call.script == "streams.exchange" and call.args[3] for call in calls)
        if reads and not delayed and len(crew.seen) >= 20:
            delayed.append((calls, send))
            raise BrokerUnavailable("no reply in time")
        replies = await send()
        if reads and delayed and not arrived.is_set():
            arrived.set()
            await delayed[0][1]()
        return replies

    around(monkeypatch, slow)
    async with fleet(**place, partitions=1, options={"prefetch": 5}) as crew:
        await crew.send(0, 100, keys=1)
        await crew.start()
        await arrived.wait()
        assert delayed[0][0][0].args[4] == ">"
        await eventually(lambda: crew.numbers[-1] == 99)
        assert crew.numbers == list(range(100))
        await eventually(crew.idle)


async def test_a_partition_that_cannot_be_reached_holds_up_no_other(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when one primary of a cluster has died."""
    refused = asyncio.Event()

    async def half(calls: Calls, send: Send) -> list[Any]:
        replies = list(await send())
        for at, call in enumerate(calls):
            if call.script == "streams.exchange" and call.keys[1] == crew.orders.keys.log(0):
                replies[at] = BrokerUnavailable("that server is away")
                refused.set()
        return replies

    async with fleet(redis_url, partitions=2) as crew:
        await crew.settle()
        around(monkeypatch, half)
        await crew.orders.send(*(Order(key=0, seq=number) for number in range(10)))
        await refused.wait()
        began = time.monotonic()
        for number in range(40):
            await crew.orders.send(Order(key=1, seq=number), Order(key=0, seq=10 + number))
            await eventually(partial(_saw, crew, 1, number))
        assert time.monotonic() - began < 20.0, "a look at the other one for each event"
        monkeypatch.undo()
        await eventually(lambda: _seen(crew, 0) == list(range(50)))


def _saw(crew: Fleet, partition: int, number: int) -> bool:
    return number in _seen(crew, partition)


def _seen(crew: Fleet, partition: int) -> list[int]:
    return [one.order.seq for one in crew.seen if one.partition == partition]


SIZE = 50


@pytest.mark.row("R06")
async def test_a_processor_that_was_away_begins_with_what_is_left_and_the_rest_is_counted(
    redis_url: str,
) -> None:
    """Twice the size arrives meanwhile, and also replaces its pending events."""
    stuck = asyncio.Event()

    async def handle(worker: int, events: Events[Order]) -> None:
        async for order in events.records():
            crew.note(worker, events, order)
            await stuck.wait()

    options = {"prefetch": 10, "grace_s": 0}
    stream_options = {"size": SIZE, "full": "drop_oldest"}
    async with fleet(
        redis_url, partitions=1, handler=handle, options=options, stream_options=stream_options
    ) as crew:
        worker = await crew.start()
        await crew.send(0, 10)
        await eventually(lambda: crew.numbers == [0])
        await crew.stop(worker)
        held = await crew.pending()
        assert 1 <= held <= 10
        for first in range(10, 10 + 2 * SIZE, 10):
            await crew.send(first, 10)
        stuck.set()
        crew.seen.clear()
        await crew.start()
        await eventually(lambda: crew.numbers and crew.numbers[-1] == 9 + 2 * SIZE)
        left = len(crew.numbers)
        assert SIZE - 10 <= left <= SIZE
        assert crew.numbers == [*range(10 + 2 * SIZE - left, 10 + 2 * SIZE)]
        stat = crew.orders.keys.stat(0)
        dropped: Any = await crew.orders.link.command("HGET", stat, "dropped")
        assert int(dropped) == 10 + 2 * SIZE - left
        lost: Any = await crew.orders.link.command("HGET", stat, "lost:handle")
        assert int(lost) == held, "of those that it had not acknowledged"

        await eventually(crew.idle)


@pytest.mark.row("R31", "R45", "R46")
@pytest.mark.parametrize("join_delay_s", [0.0, pytest.param(1.0, marks=pytest.mark.chaos)])
async def test_a_burst_of_workers_settles(place: dict[str, Any], join_delay_s: float) -> None:
    """With a join delay in few plans; without one it also settles."""
    partitions, count, events = 256, 16, 1_024
    options = {"join_delay_s": join_delay_s, "lease_s": 60.0}
    async with fleet(**place, partitions=partitions, options=options) as crew:
        await crew.send(0, events, keys=partitions)
        began = asyncio.get_running_loop().time()
        workers = []
        for _ in range(count):
            workers.append(await crew.start())
            if join_delay_s:
                # One after the other, within the delay: without it, each makes another plan.
                await asyncio.sleep(join_delay_s / count / 3)
        await eventually(crew.settled)
        await eventually(lambda: len(crew.seen) >= events)
        took_s = asyncio.get_running_loop().time() - began
        assert sorted(crew.numbers) == list(range(events)), "each once"
        assert crew.out_of_order() == []
        assert took_s < 30
        if join_delay_s:
            moves = [worker.executor.runner.counters.rebalances for worker in workers]
            assert max(moves) <= 4, moves


@pytest.mark.row("R15")
async def test_a_batch_that_waits_to_be_filled_ends_with_its_partition(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No further event wakes it; its events are delivered again by the next owner."""

    async def patiently(worker: int, events: Events[Order]) -> None:
        async for batch in events.records().take(2, within=30.0):
            for order in batch:
                crew.note(worker, events, order)

    options = {"grace_s": 30.0, "lease_s": 60.0}
    async with fleet(redis_url, partitions=8, handler=patiently, options=options) as crew:
        first = await crew.start()
        await crew.send(0, 8, keys=8)
        await eventually(crew.settled)
        lanes = first.executor.runner.partitions
        await eventually(lambda: [len(lane.buffer) for lane in lanes] == [1] * 8)
        joined = await crew.start()
        await eventually(lambda: crew.settled() and len(joined.owned) == 4, timeout=20)
        assert crew.seen == []
        await crew.send(8, 8, keys=8)
        await eventually(lambda: sorted(crew.numbers) == list(range(16)))
        assert crew.out_of_order() == []
        assert "processor_interrupted" not in caplog.text

"""Leases: one owner at a time, and nothing from a former one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.group.membership import Action, Membership, MembershipStatus
from chancy.plugins.redis.streams.inspection import Inspection
from chancy.plugins.redis.streams.processing import ownership
from chancy.plugins.redis.streams.processing.ownership import Busy, Ownership, Parked
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Options, Processor
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from tests.plugins.redis.streams.fleet import Order, fleet, orders_of
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

#: What is done within it takes milliseconds, on a busy machine some hundred of them.
LEASE_S = 1.0


@pytest.fixture
async def processor(place: dict[str, Any]) -> AsyncIterator[Processor[Order]]:
    streams = Streams(RedisSettings(**place, prefix="t:"))
    stream: Stream[Order] = orders_of(streams, 2)

    async def nothing(_: object) -> None: ...

    yield Processor(stream, nothing, name="handle", options=Options(lease_s=LEASE_S))
    await streams.link.close()


async def acquired(
    link: RedisClient, processor: Processor[Order], member: str
) -> OwnedPartition[Any]:
    claim = (await Ownership(link, processor, member).acquire([0]))[0]
    assert isinstance(claim, OwnedPartition)
    return claim


async def exchange(
    link: RedisClient,
    processor: Processor[Order],
    member: str,
    lane: OwnedPartition[Any],
    cursor: str,
    *ids: str,
) -> Any:
    lane.start_exchange()
    keys = processor.stream.keys
    return await link.run(
        "streams.exchange",
        (keys.own(0, "handle"), keys.log(0), keys.stat(0)),
        ("handle", member, lane.epoch, 10, cursor, lane.exchanges, 10_000_000, *ids),
    )


async def end_lease(processor: Processor[Order]) -> None:
    """As its time does."""
    link, own = processor.stream.link, processor.stream.keys.own(0, "handle")
    await link.command("HSET", own, "until", 0)


async def succeeded(
    link: RedisClient, processor: Processor[Order], member: str
) -> OwnedPartition[Any]:
    await end_lease(processor)
    return await acquired(link, processor, member)


@pytest.mark.row("R29", "R45")
async def test_a_partition_has_one_owner_until_its_lease_ends(processor: Processor[Order]) -> None:
    link = processor.stream.link
    first = await acquired(link, processor, "a")
    found = (await Ownership(link, processor, "b").acquire([0]))[0]
    assert isinstance(found, Busy)
    assert 0 < found.left_s <= LEASE_S
    ownership = Ownership(link, processor, "b")

    async def free() -> OwnedPartition[Any] | None:
        claim = (await ownership.acquire([0]))[0]
        return claim if isinstance(claim, OwnedPartition) else None

    second = await eventually(free)
    assert second is not None
    assert second.epoch > first.epoch


@pytest.mark.row("R30")
async def test_reads_and_acknowledgements_of_a_former_owner_are_refused(
    processor: Processor[Order],
) -> None:
    link, stream = processor.stream.link, processor.stream
    ids = await stream.send(*(Order(key=0, seq=number) for number in range(5)))
    first = await acquired(link, processor, "a")
    status, entries, *_ = await exchange(link, processor, "a", first, ">")
    assert status == b"ok"
    assert [xid.decode() for xid, _ in entries] == ids
    assert (await exchange(link, processor, "a", first, ">", ids[0]))[0] == b"ok"
    second = await succeeded(link, processor, "b")
    late = await stream.send(Order(key=0, seq=5))
    assert await exchange(link, processor, "a", first, ">", ids[1]) == [b"lost"]
    inspection = Inspection(stream, processor.name)
    assert [report.fenced for report in await inspection.report()][:2] == [1, 0]
    # What was pending comes first and in order, and then what is new.
    _, pending, *_ = await exchange(link, processor, "b", second, "0-0")
    assert [xid.decode() for xid, _ in pending] == ids[1:]
    _, new, *_ = await exchange(link, processor, "b", second, ">")
    assert [xid.decode() for xid, _ in new] == late


@pytest.mark.row("R30")
async def test_an_earlier_epoch_of_the_same_owner_is_refused(processor: Processor[Order]) -> None:
    """An executor that lost a partition and acquired it again: its former consumer may be late."""
    link, stream = processor.stream.link, processor.stream
    [id] = await stream.send(Order(key=0, seq=0))
    first = await acquired(link, processor, "a")
    await exchange(link, processor, "a", first, ">")
    second = await acquired(link, processor, "a")
    assert await exchange(link, processor, "a", first, ">", id) == [b"lost"]
    _, pending, *_ = await exchange(link, processor, "a", second, "0-0")
    assert [xid.decode() for xid, _ in pending] == [id]


async def test_a_lease_that_has_ended_cannot_be_extended_though_it_was_not_taken(
    processor: Processor[Order],
) -> None:
    link = processor.stream.link
    ownership = Ownership(link, processor, "a")
    lane = await acquired(link, processor, "a")
    assert await ownership.extend([lane]) == []
    await end_lease(processor)
    assert await ownership.extend([lane]) == [lane]
    assert await ownership.release([lane]) == [False]


@pytest.mark.row("R29", "R30")
async def test_a_former_owner_parks_buries_halts_and_releases_nothing(
    processor: Processor[Order],
) -> None:
    link, stream = processor.stream.link, processor.stream
    ids = await stream.send(Order(key=0, seq=0))
    first = await acquired(link, processor, "a")
    await exchange(link, processor, "a", first, ">")
    second = await succeeded(link, processor, "b")
    stale = Ownership(link, processor, "a")
    first.acked.extend(ids)
    assert await stale.release([first]) == [False]
    assert await stale.halt(first, "x") is False
    assert await link.command("HGET", stream.keys.own(0, "handle"), "owner") == b"b"
    assert await stale.park(first, RuntimeError("x")) is False
    assert await stale.bury(first, ids, RuntimeError("x")) is None
    owner = Ownership(link, processor, "b")
    assert await owner.bury(second, ids, RuntimeError("x")) == 1
    assert await owner.bury(second, ids, RuntimeError("x")) == 0, "a repetition writes nothing"
    assert await owner.park(second, RuntimeError("x")) is True
    assert isinstance((await owner.acquire([0]))[0], Parked)


async def test_dead_letters_beyond_the_limit_are_dropped_counted_and_logged_once_a_minute(
    processor: Processor[Order], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ownership, "MAX_LETTERS", 2)
    link, stream = processor.stream.link, processor.stream
    ids = await stream.send(*(Order(key=0, seq=seq) for seq in range(8)))
    mine = Ownership(link, processor, "a")
    lane = (await mine.acquire([0]))[0]
    assert isinstance(lane, OwnedPartition)
    await exchange(link, processor, "a", lane, ">")
    for one in ids[:5]:
        assert await mine.bury(lane, [one], RuntimeError("x")) == 1
    logged = [one for one in caplog.messages if one.startswith("event_letters_dropped")]
    assert len(logged) == 1
    assert f"event_letters_dropped processor={processor.id} count=1 most=2" in logged[0]
    monkeypatch.setattr(ownership, "_REPORTED_S", 0.0)
    assert await mine.bury(lane, ids[5:], RuntimeError("x")) == 3
    assert f"event_letters_dropped processor={processor.id} count=5" in caplog.text
    (report, *_) = await Inspection(stream, "handle").report()
    assert (report.dead, report.dead_dropped) == (2, 6)


async def test_a_failed_event_that_was_dropped_from_the_log_is_counted_as_lost(
    processor: Processor[Order],
) -> None:
    link, stream = processor.stream.link, processor.stream
    ids = await stream.send(Order(key=0, seq=0), Order(key=0, seq=1))
    lane = await acquired(link, processor, "a")
    await exchange(link, processor, "a", lane, ">")
    await link.command("XTRIM", stream.keys.log(0), "MAXLEN", 1)
    assert await Ownership(link, processor, "a").bury(lane, ids, RuntimeError("x")) == 1
    (report, *_) = await Inspection(stream, "handle").report()
    assert (report.dead, report.lost, report.pending) == (1, 1, 0)


async def test_few_large_events_are_dead_lettered_by_one_script(
    processor: Processor[Order],
) -> None:
    link, stream, keys = processor.stream.link, processor.stream, processor.stream.keys
    name, data = stream.coding.encode(Order(key=0, seq=0))
    ids = [
        (await link.command("XADD", keys.log(0), "*", name, data + b" " * 100_000)).decode()
        for _ in range(6)
    ]
    lane = await acquired(link, processor, "a")
    await exchange(link, processor, "a", lane, ">")
    of_script = keys.own(0, "handle"), keys.log(0), keys.dead(0, "handle"), keys.stat(0)
    args = "handle", "a", lane.epoch, 100, "x", *ids
    assert await link.run("streams.bury", of_script, args) == [b"ok", 2, 2, 0]
    assert await Ownership(link, processor, "a").bury(lane, ids, RuntimeError("x")) == 4
    assert await link.command("XLEN", keys.dead(0, "handle")) == len(ids)
    assert (await link.command("XPENDING", keys.log(0), "handle"))["pending"] == 0


async def test_pending_entries_that_were_dropped_from_the_log_are_counted_and_done_with(
    processor: Processor[Order],
) -> None:
    link, stream = processor.stream.link, processor.stream
    await stream.send(*(Order(key=0, seq=number) for number in range(5)))
    first = await acquired(link, processor, "a")
    _, entries, *_ = await exchange(link, processor, "a", first, ">")
    await link.command("XDEL", stream.keys.log(0), entries[1][0], entries[2][0])
    second = await succeeded(link, processor, "b")
    _, pending, *_ = await exchange(link, processor, "b", second, "0-0")
    assert [xid for xid, _ in pending] == [entries[0][0], entries[3][0], entries[4][0]]
    assert await link.command("HGET", stream.keys.stat(0), "lost:handle") == b"2"


@pytest.mark.row("R30")
async def test_a_worker_that_was_unresponsive_longer_than_its_lease_hands_out_nothing_more(
    own_redis: Callable[..., RedisServer],
) -> None:
    """The server is out of reach; the worker cannot know who owns its partitions now."""
    server = own_redis()
    async with fleet(server.url, partitions=1, options={"lease_s": 0.4, "prefetch": 50}) as crew:
        going = asyncio.Event()

        async def handle(worker: int, events: Any) -> None:
            async for order in events.records():
                crew.note(worker, events, order)
                await going.wait()

        crew.handler = handle
        worker = await crew.start()
        await crew.send(0, 50)
        await eventually(lambda: len(crew.seen) == 1)
        (lane,) = worker.executor.runner.partitions
        server.freeze()
        await eventually(lambda: lane.over)
        going.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert crew.numbers == [0]
        server.thaw()
        await eventually(lambda: set(crew.numbers) == set(range(50)))


@pytest.mark.row("R30")
async def test_a_lease_that_is_extended_late_strands_no_partition(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer to the heartbeat comes when the processor has ended for want of a lease."""
    async with fleet(redis_url, partitions=1, options={"lease_s": 60.0}) as crew:
        worker = await crew.start()
        await crew.send(0, 1)
        await eventually(lambda: crew.numbers == [0])
        (lane,) = worker.executor.runner.partitions
        until, lane.deadline = lane.deadline, 0.0
        lane.arrive()
        # The consumer has ended in the next turns of the loop, long before the next heartbeat.
        for _ in range(20):
            await asyncio.sleep(0)
        lane.extended(until)
        await crew.send(1, 1)
        await eventually(lambda: crew.numbers == [0, 1], timeout=5)
        assert "partition_lost processor=orders/handle partition=0 epoch=1: its" in caplog.text


async def test_an_odd_failure_of_a_heartbeat_is_not_its_end(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that no broker raises: nobody else would extend the leases."""
    change, beats = Membership.change, list[str]()

    async def odd(membership: Membership, action: Action) -> MembershipStatus:
        if action == "beat":
            beats.append(action)
            if len(beats) == 1:
                raise RuntimeError("odd")
        return await change(membership, action)

    monkeypatch.setattr(Membership, "change", odd)
    async with fleet(redis_url, partitions=2, options={"lease_s": 2.0}) as crew:
        await crew.start()
        await eventually(lambda: len(beats) > 1, timeout=10)
        assert "stream_heartbeat_failed processor=orders/handle error=RuntimeError: odd" in (
            caplog.text
        )

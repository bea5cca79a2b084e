"""Leases: one owner at a time, calls of former owners are refused, and their loss is logged."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chancy.plugins.redis.streams.group.membership import Action, Membership, MembershipStatus
from chancy.plugins.redis.streams.inspection import Inspection, PartitionReport
from chancy.plugins.redis.streams.model.policy import Quarantine
from chancy.plugins.redis.streams.processing import ownership
from chancy.plugins.redis.streams.processing.events import Events
from chancy.plugins.redis.streams.processing.ownership import Busy, Ownership, Parked
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Options, Processor
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.scripts import Value
from tests.plugins.redis.streams.fleet import Fleet, Order, Worker, beat_often, fleet, orders_of
from tests.plugins.redis.trips import Calls, Send, around
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

#: Longer than a busy machine stands still.
LEASE_S = 60.0


class Group:
    """A processor of a stream of two partitions, and members that own the first of them."""

    def __init__(self, streams: Streams) -> None:
        async def nothing(_: object) -> None: ...

        self.stream: Stream[Order] = orders_of(streams, 2)
        self.processor = Processor(
            self.stream, nothing, name="handle", options=Options(lease_s=LEASE_S)
        )
        self.link, self.keys = streams.link, self.stream.keys

    async def member(self, name: str) -> Member:
        """A member that has acquired the partition."""
        made = Member(self, name)
        await made.acquire()
        return made

    async def end_lease(self, in_s: float = 0.0) -> None:
        """End the lease as if its time were over, or nearly."""
        until = round((time.time() + in_s) * 1000) if in_s else 0
        await self.link.command("HSET", self.keys.own(0, "handle"), "until", until)

    async def successor(self, name: str) -> Member:
        await self.end_lease()
        return await self.member(name)

    async def send(self, count: int, first: int = 0) -> Sequence[str]:
        numbers = range(first, first + count)
        return await self.stream.send(*(Order(key=0, seq=number) for number in numbers))

    async def report(self) -> PartitionReport:
        return (await Inspection(self.stream, "handle").report())[0]


class Member:
    lane: OwnedPartition[Any]

    def __init__(self, group: Group, name: str) -> None:
        self.group, self.name = group, name
        self.ownership = Ownership(group.link, group.processor, name)

    async def acquire(self) -> None:
        claim = (await self.ownership.acquire([0]))[0]
        assert isinstance(claim, OwnedPartition)
        self.lane = claim

    async def exchange(self, cursor: str, *ids: str, epoch: int | None = None) -> Any:
        lane, keys = self.lane, self.group.keys
        lane.start_exchange()
        return await self.group.link.run(
            "streams.exchange",
            (keys.own(0, "handle"), keys.log(0), keys.stat(0)),
            (
                "handle",
                self.name,
                epoch or lane.epoch,
                10,
                cursor,
                lane.exchanges,
                10_000_000,
                *ids,
            ),
        )

    async def read(self, cursor: str = ">") -> list[str]:
        """The ids of the events that it reads."""
        status, entries, *_ = await self.exchange(cursor)
        assert status == b"ok"
        return [xid.decode() for xid, _ in entries]


@pytest.fixture
def group(place: dict[str, Any], streams: Streams) -> Group:
    return Group(streams)


@pytest.mark.row("R29", "R45")
async def test_a_partition_has_one_owner_until_its_lease_ends(group: Group) -> None:
    first, other = await group.member("a"), Ownership(group.link, group.processor, "b")
    found = (await other.acquire([0]))[0]
    assert isinstance(found, Busy)
    assert 0 < found.left_s <= LEASE_S
    await group.end_lease(0.3)

    async def free() -> OwnedPartition[Any] | None:
        claim = (await other.acquire([0]))[0]
        return claim if isinstance(claim, OwnedPartition) else None

    second = await eventually(free)
    assert second is not None
    assert second.epoch > first.lane.epoch


@pytest.mark.row("R30")
async def test_reads_and_acknowledgements_of_a_former_owner_are_refused(group: Group) -> None:
    ids = await group.send(5)
    first = await group.member("a")
    assert await first.read() == ids
    assert (await first.exchange(">", ids[0]))[0] == b"ok"
    second = await group.successor("b")
    late = await group.send(1, 5)
    assert await first.exchange(">", ids[1]) == [b"lost"]
    assert (await group.report()).fenced == 1
    # Pending events come first, in order, and new ones after them.
    assert await second.read("0-0") == ids[1:]
    assert await second.read() == late


@pytest.mark.row("R30")
async def test_an_earlier_epoch_of_the_same_owner_is_refused(group: Group) -> None:
    """An executor lost a partition and acquired it again; its former consumer may still read."""
    [id] = await group.send(1)
    member = await group.member("a")
    await member.read()
    epoch = member.lane.epoch
    await member.acquire()
    assert await member.exchange(">", id, epoch=epoch) == [b"lost"]
    assert await member.read("0-0") == [id]


async def test_a_lease_that_has_ended_cannot_be_extended_though_it_was_not_taken(
    group: Group,
) -> None:
    member = await group.member("a")
    assert await member.ownership.extend([member.lane]) == []
    await group.end_lease()
    assert await member.ownership.extend([member.lane]) == [member.lane]
    assert await member.ownership.release([member.lane]) == [False]


@pytest.mark.row("R29", "R30")
async def test_a_former_owner_parks_buries_halts_and_releases_nothing(group: Group) -> None:
    ids, error = await group.send(1), RuntimeError("x")
    first = await group.member("a")
    await first.read()
    second = await group.successor("b")
    stale, owner, lane = first.ownership, second.ownership, first.lane
    lane.acked.extend(ids)
    assert await stale.release([lane]) == [False]
    assert await stale.halt(lane, "x") is False
    assert await group.link.command("HGET", group.keys.own(0, "handle"), "owner") == b"b"
    assert await stale.park(lane, error) is False
    assert await stale.bury(lane, ids, error) is None
    assert await owner.bury(second.lane, ids, error) == 1
    assert await owner.bury(second.lane, ids, error) == 0, "a repetition writes nothing"
    assert await owner.park(second.lane, error) is True
    assert isinstance((await owner.acquire([0]))[0], Parked)


async def test_dead_letters_beyond_the_limit_are_dropped_counted_and_logged_once_a_minute(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ownership, "MAX_LETTERS", 2)
    ids, error = await group.send(8), RuntimeError("x")
    member = await group.member("a")
    await member.read()
    for one in ids[:5]:
        assert await member.ownership.bury(member.lane, [one], error) == 1
    logged = [one for one in caplog.messages if one.startswith("event_letters_dropped")]
    assert len(logged) == 1
    told = f"event_letters_dropped processor={group.processor.id} count="
    assert f"{told}1 most=2" in logged[0]
    monkeypatch.setattr(ownership, "_REPORTED_S", 0.0)
    assert await member.ownership.bury(member.lane, ids[5:], error) == 3
    assert f"{told}5" in caplog.text
    report = await group.report()
    assert (report.dead, report.dead_dropped) == (2, 6)


async def test_a_failed_event_that_was_dropped_from_the_log_is_counted_as_lost(
    group: Group,
) -> None:
    ids = await group.send(2)
    member = await group.member("a")
    await member.read()
    await group.link.command("XTRIM", group.keys.log(0), "MAXLEN", 1)
    assert await member.ownership.bury(member.lane, ids, RuntimeError("x")) == 1
    report = await group.report()
    assert (report.dead, report.lost, report.pending) == (1, 1, 0)


async def test_few_large_events_are_dead_lettered_by_one_script(group: Group) -> None:
    link, keys = group.link, group.keys
    name, data = group.stream.coding.encode(Order(key=0, seq=0))
    for _ in range(6):
        await link.command("XADD", keys.log(0), "*", name, data + b" " * 100_000)
    member = await group.member("a")
    ids = await member.read()
    of_script = keys.own(0, "handle"), keys.log(0), keys.dead(0, "handle"), keys.stat(0)
    args: list[Value] = ["handle", "a", member.lane.epoch, 100, "x", *ids]
    assert await link.run("streams.bury", of_script, args) == [b"ok", 2, 2, 0]
    assert await member.ownership.bury(member.lane, ids, RuntimeError("x")) == 4
    report = await group.report()
    assert (report.dead, report.pending) == (6, 0)


async def test_events_after_a_partition_has_lost_its_data_are_not_skipped(group: Group) -> None:
    """The rest of the group is on another server of the cluster, and has lost nothing."""
    group.processor.options = Options(lease_s=LEASE_S, start="$")
    await group.send(1)
    member = await group.member("a")
    assert await member.read() == []
    await group.link.command("DEL", group.keys.log(0), group.keys.own(0, "handle"))
    ids = await group.send(1, 1)
    await member.acquire()
    assert await member.read() == ids


async def test_pending_entries_that_were_dropped_from_the_log_are_counted_and_done_with(
    group: Group,
) -> None:
    await group.send(5)
    ids = await (await group.member("a")).read()
    await group.link.command("XDEL", group.keys.log(0), *ids[1:3])
    second = await group.successor("b")
    assert await second.read("0-0") == [ids[0], *ids[3:]]
    assert (await group.report()).lost == 2


@pytest.mark.row("R30")
async def test_a_worker_that_was_unresponsive_longer_than_its_lease_hands_out_nothing_more(
    own_redis: Callable[..., RedisServer],
) -> None:
    """While the server cannot be reached, another worker may own its partitions."""
    server = own_redis()
    options = {"lease_s": LEASE_S, "prefetch": 50}
    async with fleet(server.url, partitions=1, options=options) as crew:
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
        assert not lane.over
        # As a lease later.
        lane.deadline -= LEASE_S
        going.set()
        await eventually(lambda: lane.lost)
        await asyncio.sleep(0.05)
        assert crew.numbers == [0]
        server.thaw()
        await eventually(lambda: set(crew.numbers) == set(range(50)))


@pytest.mark.row("R30")
async def test_a_lease_that_is_extended_late_strands_no_partition(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reply to the heartbeat arrives after the lease, and so the processor, has ended."""
    async with fleet(redis_url, partitions=1, options={"lease_s": 60.0}) as crew:
        worker = await crew.start()
        await crew.send(0, 1)
        await eventually(lambda: crew.numbers == [0])
        (lane,) = worker.executor.runner.partitions
        until, lane.deadline = lane.deadline, 0.0
        lane.arrive()
        # The consumer ends in the next iterations of the loop, long before the next heartbeat.
        for _ in range(20):
            await asyncio.sleep(0)
        lane.extended(until)
        await crew.send(1, 1)
        await eventually(lambda: crew.numbers == [0, 1])
        assert "partition_lost processor=orders/handle partition=0 epoch=1: its" in caplog.text


async def test_an_odd_failure_of_a_heartbeat_is_not_its_end(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error must not end the heartbeat: nothing else extends the leases."""
    change, beats = Membership.change, list[str]()

    async def odd(membership: Membership, action: Action) -> MembershipStatus:
        if action == "beat":
            beats.append(action)
            if len(beats) == 1:
                raise RuntimeError("odd")
        return await change(membership, action)

    monkeypatch.setattr(Membership, "change", odd)
    beat_often(monkeypatch)
    async with fleet(redis_url, partitions=2) as crew:
        await crew.start()
        await eventually(lambda: len(beats) > 1)
        assert "stream_heartbeat_failed processor=orders/handle error=RuntimeError: odd" in (
            caplog.text
        )


class Overtaken:
    """Extensions of leases arrive at the server after the partitions were released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, given_by: str) -> None:
        self.kept = 0
        self.given = threading.Event()
        beat_often(monkeypatch)

        async def delayed(calls: Calls, send: Send) -> list[Any]:
            names = {call.script for call in calls}
            if "streams.extend" in names:
                self.kept += 1
                await eventually(self.given.is_set)
            replies = await send()
            if given_by in names:
                self.given.set()
                await asyncio.sleep(0.1)  # its reply arrives last
            return replies

        around(monkeypatch, delayed)


async def test_a_partition_that_is_released_is_not_said_to_be_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extensions = Overtaken(monkeypatch, "streams.release")
    async with fleet(redis_url, partitions=2, options={"lease_s": LEASE_S}) as crew:
        worker = await crew.settle()
        await eventually(lambda: extensions.kept)
        await crew.stop(worker)
        assert extensions.given.is_set()
    assert "partition_lost" not in caplog.text


async def test_a_partition_that_is_quarantined_is_not_said_to_be_lost(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extensions, spoilt = Overtaken(monkeypatch, "streams.park"), asyncio.Event()

    async def handle(worker: int, events: Events[Order]) -> None:
        async for _ in events.records():
            await spoilt.wait()
            raise ValueError("no")

    options = {"lease_s": LEASE_S, "policy": Quarantine()}
    async with fleet(redis_url, partitions=1, handler=handle, options=options) as crew:
        worker = await crew.start()
        await crew.send(0, 1)
        await eventually(lambda: extensions.kept)
        spoilt.set()
        await eventually(lambda: worker.executor.runner.parked == {0})
    assert "partition_lost" not in caplog.text


async def taken_away(crew: Fleet, worker: Worker) -> None:
    """Give the first partition to another member, as after a failover that lost the owner."""
    link, keys = crew.orders.link, crew.orders.keys
    await link.command("HSET", keys.own(0, "handle"), "until", 0)
    await Ownership(link, worker.executor.processor, "another").acquire([0])


async def test_a_loss_is_reported_once_though_the_processor_does_not_end(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beats, going, change = list[str](), asyncio.Event(), Membership.change

    async def noted(membership: Membership, action: Any) -> Any:
        beats.append(action)
        return await change(membership, action)

    async def handle(worker: int, events: Events[Order]) -> None:
        async for _ in events.records():
            while not going.is_set():
                try:
                    await going.wait()
                except asyncio.CancelledError:
                    continue

    monkeypatch.setattr(Membership, "change", noted)
    options = {"lease_s": LEASE_S, "check_s": 0.1}
    beat_often(monkeypatch)
    async with fleet(redis_url, partitions=1, handler=handle, options=options) as crew:
        worker = await crew.start()
        await crew.send(0, 1)
        await eventually(crew.settled)
        await taken_away(crew, worker)
        await eventually(lambda: "partition_lost" in caplog.text)
        beats.clear()
        await eventually(lambda: beats.count("beat") >= 3)
        going.set()
    assert caplog.text.count("partition_lost processor=orders/handle partition=0 epoch=1") == 1


async def test_a_refused_release_is_logged(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Events finished since the last acknowledgement are delivered again."""
    beats, change = list[str](), Membership.change

    async def noted(membership: Membership, action: Any) -> Any:
        beats.append(action)
        return await change(membership, action)

    monkeypatch.setattr(Membership, "change", noted)
    async with fleet(redis_url, partitions=1, options={"lease_s": 60.0}) as crew:
        worker = await crew.start()
        await crew.send(0, 3)
        await eventually(lambda: len(crew.seen) == 3)
        await eventually(crew.settled)
        await eventually(lambda: "beat" in beats)  # the next one would be after 15 s
        await taken_away(crew, worker)
        runner = worker.executor.runner
        await crew.stop(worker)
        assert runner.counters.fenced == 1
    assert caplog.text.count("partition_lost processor=orders/handle partition=0 epoch=1") == 1

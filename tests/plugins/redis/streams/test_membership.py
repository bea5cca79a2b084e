"""Who belongs to a processor, and how the partitions are shared; joins that are not answered."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.streams.group.maintenance import Maintenance
from chancy.plugins.redis.streams.group.membership import Membership, PartitionPlan, read_plan
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Options, Processor, Strategy
from chancy.plugins.redis.streams.streams import Streams
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import ScriptCall, script_of
from tests.plugins.redis.streams.fleet import Order, fleet, orders_of
from tests.plugins.redis.trips import lose
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually


class Members:
    """A group of members, of which only the script is called."""

    def __init__(self, client: Any, partitions: int, strategy: Strategy) -> None:
        self._client = client
        self._script = script_of("streams.membership").text
        self._partitions = partitions
        self._strategy = strategy
        self.joined: list[str] = []
        client.flushall()

    def change(self, action: str, member: str) -> PartitionPlan:
        keys = ("{m}:members", "{m}:plan", "{m}:ctl")
        args = (action, member, 60_000, self._partitions, self._strategy)
        self._client.eval(self._script, len(keys), *keys, *args)
        return read_plan(self._client.hmget(keys[1], "version", "order", "assigned"))

    def join(self, member: str) -> PartitionPlan:
        self.joined.append(member)
        return self.change("join", member)

    def leave(self, member: str) -> PartitionPlan:
        self.joined.remove(member)
        return self.change("leave", member)


def fair(plan: PartitionPlan, members: Sequence[str], partitions: int) -> bool:
    counts = Counter(dict.fromkeys(members, 0) | Counter(plan.assigned))
    return sum(counts.values()) == partitions and max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.row("R24")
@pytest.mark.parametrize(
    ("partitions", "members", "wanted"),
    [
        (8, 1, [8]),
        (8, 2, [4, 4]),
        (8, 3, [3, 3, 2]),
        (2, 3, [1, 1, 0]),
        (1, 1, [1]),
        (16, 5, [4, 3, 3, 3, 3]),
    ],
)
def test_contiguous_shares_are_neighbours_in_the_order_of_joining(
    redis_url: str, redis_server: RedisServer, partitions: int, members: int, wanted: list[int]
) -> None:
    with redis_server.client() as client:
        group = Members(client, partitions, "contiguous")
        plan = [group.join(f"m{number}") for number in range(members)][-1]
    expected = [f"m{number}" for number, count in enumerate(wanted) for _ in range(count)]
    assert list(plan.assigned) == expected


@pytest.mark.row("R24")
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    partitions=st.integers(1, 40),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 100)), min_size=1, max_size=12),
)
def test_sticky_is_fair_and_moves_the_fewest(
    redis_url: str, partitions: int, steps: list[tuple[bool, int]]
) -> None:
    client: Any = Redis.from_url(redis_url)
    try:
        group = Members(client, partitions, "sticky")
        before = group.join("m0")
        for number, (joins, which) in enumerate(steps, 1):
            if joins or len(group.joined) == 1:
                plan = group.join(f"m{number}")
            else:
                plan = group.leave(group.joined[which % len(group.joined)])
            assert fair(plan, group.joined, partitions)
            assert plan.version == before.version + 1
            moved = sum(a != b for a, b in zip(before.assigned, plan.assigned, strict=True))
            assert moved == fewest(before, group.joined, partitions)
            before = plan
    finally:
        client.close()


def fewest(before: PartitionPlan, members: Sequence[str], partitions: int) -> int:
    """The least moves of a fair plan: partitions that no member may keep."""
    least, extra = divmod(partitions, len(members))
    had = sorted((Counter(before.assigned)[member] for member in members), reverse=True)
    kept = sum(min(count, least + (at < extra)) for at, count in enumerate(had))
    return partitions - kept


@pytest.fixture
async def processor(redis_url: str) -> AsyncIterator[Processor[Order]]:
    streams = Streams(RedisSettings(url=redis_url, prefix="t:"))
    stream = orders_of(streams, 4)

    async def nothing(_: object) -> None: ...

    yield Processor(stream, nothing, name="handle", options=Options(lease_s=60.0))
    await streams.link.close()


async def control(link: RedisClient, processor: Processor[Order]) -> list[str]:
    found = await link.command("XRANGE", processor.stream.keys.ctl("handle"), "-", "+")
    return [fields[b"reason"].decode() for _, fields in found]


async def test_each_change_makes_a_plan_and_notifies_every_member(
    processor: Processor[Order],
) -> None:
    link = processor.stream.link
    one, two = Membership(link, processor, "one"), Membership(link, processor, "two")
    assert (await one.change("join")).version == 1
    assert (await one.change("join")).version == 1, "a repetition changes nothing"
    standing = await two.change("join")
    assert standing.belongs
    assert standing.version == 2
    plan = await one.plan()
    assert plan.order == ["one", "two"]
    assert len(plan.of("one")) == len(plan.of("two")) == 2
    assert not (await two.change("leave")).belongs
    assert (await one.plan()).of("one") == frozenset(range(4))
    assert await control(link, processor) == ["join", "join", "leave"]


@pytest.mark.row("R26")
async def test_a_member_that_is_unresponsive_is_found_dead_by_any_other(
    processor: Processor[Order],
) -> None:
    link = processor.stream.link
    one, two = Membership(link, processor, "one"), Membership(link, processor, "two")
    await one.change("join")
    await two.change("join")
    assert (await two.change("reap")).dead == []
    # As 59.9 of its 60 seconds later.
    key = processor.stream.keys.members("handle")
    await link.command("ZINCRBY", key, -59_900, "one")

    async def found() -> bool:
        assert (await two.change("beat")).belongs
        return (await two.change("reap")).dead == ["one"]

    await eventually(found)
    assert (await two.plan()).of("two") == frozenset(range(4))
    assert (await control(link, processor))[-1] == "dead"
    assert not (await one.change("beat")).belongs, "a beat does not bring it back"
    assert (await one.change("join")).belongs


async def test_a_plan_for_another_number_of_partitions_is_made_again(
    processor: Processor[Order],
) -> None:
    link = processor.stream.link
    member = Membership(link, processor, "one")
    await member.change("join")
    processor.stream.partitions = 6
    await member.change("reap")
    assert (await member.plan()).of("one") == frozenset(range(6))


@pytest.mark.row("R31")
async def test_a_member_of_many_reads_all_of_them_only_after_a_change(
    processor: Processor[Order],
) -> None:
    link, keys = processor.stream.link, processor.stream.keys
    many = Processor(processor.stream, processor.function, name="handle", options=Options())
    members = [Membership(link, many, f"{number:032}") for number in range(500)]
    await asyncio.gather(*(member.change("join") for member in members))
    one = members[0]
    before = await one.plan()
    assert len(before.order) == 500
    await link.command("CONFIG", "RESETSTAT")
    for _ in range(10):
        assert (await one.change("beat")).alive == 500
        assert (await one.change("reap")).dead == []
        assert await one.plan() is before
    assert "cmdstat_zrange" not in await link.command("INFO", "commandstats")
    sent = (await link.command("INFO", "stats"))["total_net_output_bytes"]
    assert sent < 20_000, "all of them are 16,500 bytes"
    await members[1].change("leave")
    assert len((await one.plan()).order) == 499
    await link.command("DEL", keys.plan("handle"), keys.ctl("handle"))
    assert list((await one.plan()).order) == []


@pytest.mark.row("R31")
@pytest.mark.parametrize(("count", "least", "most"), [(4, 4, 4), (500, 1, 15)])
async def test_few_members_of_many_look_for_dead_ones(
    processor: Processor[Order], count: int, least: int, most: int
) -> None:
    """About four members in each interval."""
    random.seed(7)
    looked = list[str]()

    class Noted:
        async def change(self, action: str) -> Any:
            looked.append(action)
            return SimpleNamespace(dead=())

    noted: Any = Noted()
    link = processor.stream.link
    member = Maintenance(link, processor, noted, partitions=list, members=lambda: count)
    for _ in range(count):
        await member.reap()
    assert least <= len(looked) <= most


def join(call: ScriptCall) -> bool:
    return call.script == "streams.membership" and call.args[0] == "join"


@pytest.mark.row("R24", "R31")
async def test_a_worker_whose_join_had_no_answer_has_all_partitions_at_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not have to wait for the lease of a second member, which a retry would create."""
    lost = lose(monkeypatch, join, 2)
    async with fleet(redis_url, partitions=8, options={"lease_s": 60}) as crew:
        await crew.start()
        await eventually(crew.settled)
        assert len(lost) == 2
        keys = crew.orders.keys
        assert await crew.orders.link.command("ZCARD", keys.members("handle")) == 1


@pytest.mark.row("R27")
async def test_a_worker_that_follows_a_killed_one_waits_for_its_lease(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not exit or restart meanwhile, and first gets the events that were read before."""
    lease_s = 0.5
    async with fleet(redis_url, partitions=4) as crew:
        await crew.send(0, 20, keys=4)
        link, keys = crew.orders.link, crew.orders.keys

        async def nothing(_: object) -> None: ...

        killed = Processor(crew.orders, nothing, name="handle", options=Options(lease_s=lease_s))
        await Membership(link, killed, "killed").change("join")
        began = time.monotonic()
        for number, lane in (await Ownership(link, killed, "killed").acquire(range(4))).items():
            assert isinstance(lane, OwnedPartition)
            names = keys.own(number, "handle"), keys.log(number), keys.stat(number)
            await link.run(
                "streams.exchange", names, ("handle", "killed", lane.epoch, 2, ">", 1, 1_000)
            )
        worker = await crew.start()
        await eventually(lambda: worker.owned == set(range(4)))
        assert time.monotonic() - began > lease_s - 0.05
        await eventually(lambda: sorted(crew.numbers) == list(range(20)))
        assert crew.out_of_order() == []
        assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.row("R25")
async def test_a_worker_that_ends_before_its_join_is_answered_is_no_member(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = lose(monkeypatch, join, 10**9)
    async with fleet(redis_url, partitions=8) as crew:
        worker = await crew.start()
        await eventually(lambda: len(lost) > 1)
        await crew.stop(worker)
        keys = crew.orders.keys
        assert await crew.orders.link.command("ZCARD", keys.members("handle")) == 0

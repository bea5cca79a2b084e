"""A cluster whose primaries are killed and whose slots move while processes work on streams."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from redis.crc import key_slot

from chancy.errors import BrokerUnavailable
from tests.plugins.redis.streams.crew import Line, check_order, end
from tests.plugins.redis.streams.fleet import Order
from tests.plugins.redis.streams.orders import records
from tests.plugins.redis.streams.shard_member import LED_TICKS, PARTITIONS, TICKS, declare
from tests.plugins.redis.streams.shards import Shards, tell
from tests.support import leftovers
from tests.support.redis_fixtures import RedisClusterServers, RedisServer, cluster_nodes
from tests.support.waiting import eventually

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]

KEYS = 36
#: Seconds before a kill in which confirmed writes may be lost with the primary.
LAG_S = 1.0


class Crew:
    """Processes of `shard_member`, and what is sent to them: each number once."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.streams = declare(url, folder)
        (self.orders,) = self.streams.streams
        self.sent = 0
        #: When each number that Redis has confirmed was sent.
        self.confirmed: dict[int, float] = {}
        self.refused: list[str] = []
        #: Batches that were confirmed to the loop, and to threads.
        self.ways = [0, 0]
        self._resting = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None

    def start(self, url: str | None = None) -> None:
        words = [sys.executable, "-m", "tests.plugins.redis.streams.shard_member"]
        self.processes.append(subprocess.Popen([*words, url or self.url, str(self.folder)]))

    def kill(self) -> None:
        process = self.processes.pop(0)
        process.kill()
        process.wait()

    def load(self) -> None:
        """Send until `rest` is called, alternately from the loop and from threads."""
        self._loading = asyncio.create_task(self._load())

    async def rest(self) -> None:
        """Send no more."""
        self._resting.set()
        if self._loading is not None:
            await self._loading

    async def _load(self) -> None:
        for turn in itertools.count():
            if self._resting.is_set():
                return
            numbers = range(self.sent, self.sent + 72)
            self.sent += len(numbers)
            orders = [Order(key=one % KEYS, seq=one) for one in numbers]
            try:
                if turn % 2:
                    await asyncio.to_thread(self.orders.sync_send, *orders)
                else:
                    await self.orders.send(*orders)
                self.confirmed |= dict.fromkeys(numbers, time.monotonic())
                self.ways[turn % 2] += 1
            except BrokerUnavailable as error:
                self.refused.append(str(error))
            await asyncio.sleep(0.02)

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []

    def seen(self, partition: int) -> list[Line]:
        parts = [line.split() for line in self.lines(str(partition))]
        return [(run, int(key), int(seq)) for run, key, seq, _ in parts]

    def check_repeated(self, partition: int) -> None:
        """What comes again is what had been processed last: the rest was acknowledged long ago."""
        first, before = dict[str, float](), 0.0
        for line in self.lines(str(partition)):
            _, _, seq, at = line.split()
            assert first.setdefault(seq, float(at)) > before - LAG_S, (partition, seq)
            before = max(before, first[seq])

    async def kept(self, partition: int) -> list[int]:
        """The numbers of the events in the log."""
        return [order.seq for _, order in await records(self.orders, partition)]

    async def left(self) -> dict[int, str]:
        """Events that were not processed or not acknowledged, by partition."""
        found: dict[int, str] = {}
        for partition in range(PARTITIONS):
            log = self.orders.keys.log(partition)
            try:
                missed = set(await self.kept(partition)) - {
                    seq for _, _, seq in self.seen(partition)
                }
                told = await self.orders.link.command("XPENDING", log, "handle")
            except BrokerUnavailable as error:
                found[partition] = str(error)
                continue
            if missed or told["pending"]:
                found[partition] = f"{len(missed)} missed, {told}, {sorted(missed)[:3]}"
        return found

    async def through(self) -> bool:
        """Whether all events were processed and acknowledged."""
        left = await self.left()
        assert not left, left
        return True

    async def all_go_on(self) -> None:
        """Wait until every partition, each timer and both kinds of sends have made progress."""
        names = [*map(str, range(PARTITIONS)), LED_TICKS]
        before = {name: len(self.lines(name)) for name in names}
        ticked, sent = len(self.lines(TICKS)), list(self.ways)
        living = {str(process.pid) for process in self.processes}

        def more() -> bool:
            return (
                all(len(self.lines(name)) > before[name] for name in names)
                and living <= set(self.lines(TICKS)[ticked:])
                and all(now > then for now, then in zip(self.ways, sent, strict=True))
            )

        await eventually(more, timeout=30)

    async def close(self) -> None:
        await self.rest()
        await end(self.processes)
        await self.streams.link.close()


@pytest.fixture
def shards() -> Iterator[Shards]:
    servers = cluster_nodes(6)
    made = Shards(RedisClusterServers(servers[:3]), servers[3:])
    try:
        made.start()
        leftovers.lasting.update(one.pid for one in servers)
        yield made
    finally:
        made.close()


@pytest.fixture
async def crew(shards: Shards, tmp_path: Path) -> AsyncIterator[Crew]:
    made = Crew(shards.primaries.nodes[0].url, tmp_path)
    try:
        for _ in range(3):
            made.start()
        made.load()
        await made.all_go_on()
        yield made
    finally:
        await made.close()


async def check(crew: Crew, killed: dict[float, set[int]]) -> None:
    """Order by key, and nothing left out.

    :param killed: when a primary was killed, and the partitions that it had.
    """
    for partition in range(PARTITIONS):
        lines = crew.seen(partition)
        check_order(partition, lines)
        crew.check_repeated(partition)
        seen = {seq for _, _, seq in lines}
        for seq in crew.confirmed.keys() - seen:
            if seq % KEYS % PARTITIONS == partition:
                lags = [
                    at - crew.confirmed[seq] for at, lost in killed.items() if partition in lost
                ]
                assert any(-0.1 < lag < LAG_S for lag in lags), (seq, partition, lags)


def has(server: RedisServer, slot: int) -> bool:
    """Whether a primary has a slot."""
    return any(
        first <= slot <= last and primary[1] == server.port
        for first, last, primary, *_ in tell(server, "CLUSTER SLOTS")
    )


def partitions_of(server: RedisServer, crew: Crew) -> set[int]:
    """The partitions whose slots a primary has now."""
    slots = {at: key_slot(crew.orders.keys.log(at).encode()) for at in range(PARTITIONS)}
    return {partition for partition, slot in slots.items() if has(server, slot)}


@pytest.mark.row("R11", "R33", "R37", "R42", "R45")
async def test_primaries_are_killed_one_after_the_other(shards: Shards, crew: Crew) -> None:
    killed: dict[float, set[int]] = {}
    for primary, replica in zip(shards.primaries.nodes, shards.replicas, strict=True):
        lost = partitions_of(primary, crew)
        assert lost
        primary.kill()
        killed[time.monotonic()] = lost
        await eventually(partial(shards.leads, replica), timeout=30)
        await crew.all_go_on()
    # With the last primary, a worker is killed.
    crew.kill()
    await crew.all_go_on()
    await crew.rest()
    await eventually(crew.through, timeout=30)
    await check(crew, killed)
    assert all(process.poll() is None for process in crew.processes)


@pytest.mark.row("R30", "R42", "R45")
async def test_a_primary_is_frozen_until_another_has_its_place(shards: Shards, crew: Crew) -> None:
    """When it resumes, it first runs the commands that it received before, as a primary."""
    group = key_slot(crew.orders.keys.ctl("handle").encode())
    primary, replica = next(
        (primary, replica)
        for primary, replica in zip(shards.primaries.nodes, shards.replicas, strict=True)
        if not has(primary, group)
    )
    lost = partitions_of(primary, crew)
    others = [partition for partition in range(PARTITIONS) if partition not in lost]
    owners = [crew.seen(partition)[-1][0] for partition in others]
    primary.freeze()
    killed = {time.monotonic(): lost}
    await eventually(partial(shards.leads, replica), timeout=30)
    primary.thaw()
    killed[time.monotonic() + LAG_S / 2] = lost
    await eventually(lambda: not shards.leads(primary), timeout=30)
    await crew.all_go_on()
    assert [crew.seen(partition)[-1][0] for partition in others] == owners, "they keep theirs"
    primary.freeze()  # it is a replica now, so this has no effect on the test
    await crew.all_go_on()
    primary.thaw()
    await crew.rest()
    await eventually(crew.through, timeout=30)
    await check(crew, killed)

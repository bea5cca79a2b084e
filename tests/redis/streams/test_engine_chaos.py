"""Owners that are killed and frozen, as real processes: nothing is lost, and order holds."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.redis.streams.fleet import Order
from tests.redis.streams.member import LEASE_S, PARTITIONS, declare, noted
from tests.waiting import eventually

KEYS = 24
Line = tuple[str, int, int]


class Crew:
    """Processes of `member`."""

    def __init__(self, url: str, *, cluster: bool) -> None:
        self._arguments = [url, "1" if cluster else "0"]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.streams = declare(url, cluster=cluster)
        (self.orders,) = self.streams.streams
        self.sent = 0

    def start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.redis.streams.member", *self._arguments]
        )
        self.processes.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        self.processes.remove(process)
        process.kill()
        process.wait()

    async def send(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        await self.orders.send(*(Order(key=number % KEYS, seq=number) for number in numbers))
        self.sent += count

    async def lines(self) -> dict[int, list[Line]]:
        """Run, key and number of what was worked on, by partition and in order."""
        found: dict[int, list[Line]] = {}
        for partition in range(PARTITIONS):
            texts: Any = await self.streams.link.command("LRANGE", noted(partition), 0, -1)
            parts = [text.decode().split() for text in texts]
            found[partition] = [(run, int(key), int(seq)) for run, key, seq in parts]
        return found

    async def complete(self) -> bool:
        lines = await self.lines()
        return {seq for some in lines.values() for _, _, seq in some} == set(range(self.sent))

    async def nothing_pending(self) -> bool:
        for partition in range(PARTITIONS):
            log = self.orders.keys.log(partition)
            if (await self.streams.link.command("XPENDING", log, "handle"))["pending"]:
                return False
        return True

    async def close(self) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes:
            try:
                await asyncio.to_thread(process.wait, 10)
            finally:
                process.kill()
        await self.streams.link.close()


@pytest.fixture
async def crew(place: dict[str, Any]) -> AsyncIterator[Crew]:
    made = Crew(**place)
    try:
        yield made
    finally:
        await made.close()


def check(lines: dict[int, list[Line]]) -> None:
    """What may come again comes again in order, and a former owner ends with what it had in hand.

    A process that is frozen within an event ends that one when it goes on; nothing can prevent it.
    """
    for partition, some in lines.items():
        first: dict[int, list[int]] = defaultdict(list)
        by_run: dict[tuple[str, int], list[int]] = defaultdict(list)
        for run, key, seq in some:
            if seq not in first[key]:
                first[key].append(seq)
            by_run[run, key].append(seq)
        for key, seqs in first.items():
            assert seqs == sorted(seqs), f"key {key} of partition {partition}"
        for (run, key), seqs in by_run.items():
            assert seqs == sorted(set(seqs)), f"run {run}, key {key} of partition {partition}"
        begun = {run: at for at, (run, _, _) in reversed(list(enumerate(some)))}
        order = sorted(begun, key=lambda run: begun[run])
        for run, successor in itertools.pairwise(order):
            late = [line for line in some[begun[successor] :] if line[0] == run]
            assert len(late) <= 1, f"run {run} of partition {partition} went on: {late}"


@pytest.mark.row("R11", "R26")
async def test_the_partitions_of_a_killed_worker_go_on_elsewhere(crew: Crew) -> None:
    for _ in range(2):
        crew.start()
    await crew.send(600)
    await eventually(crew.complete, timeout=20)
    crew.kill(crew.processes[0])
    await crew.send(600)
    await eventually(crew.complete, timeout=LEASE_S * 2 + 8)
    await eventually(crew.nothing_pending)
    check(await crew.lines())


@pytest.mark.row("R30")
async def test_a_worker_that_wakes_up_does_nothing_with_what_it_no_longer_owns(crew: Crew) -> None:
    frozen = crew.start()
    await crew.send(300)
    await eventually(crew.complete, timeout=20)
    await crew.send(3000)
    frozen.send_signal(signal.SIGSTOP)
    crew.start()
    await eventually(crew.complete, timeout=20)
    frozen.send_signal(signal.SIGCONT)
    await crew.send(300)
    await eventually(crew.complete, timeout=20)
    await eventually(crew.nothing_pending)
    check(await crew.lines())


@pytest.mark.row("R11", "R27")
@pytest.mark.chaos
@pytest.mark.timeout(180)
@pytest.mark.parametrize("seconds", [30])
async def test_owners_are_killed_and_frozen_in_a_loop(crew: Crew, seconds: int) -> None:
    for _ in range(3):
        crew.start()
    until = time.monotonic() + seconds
    stop = asyncio.Event()

    async def load() -> None:
        while not stop.is_set():
            await crew.send(50)
            await asyncio.sleep(0.05)

    loading = asyncio.create_task(load())
    while time.monotonic() < until:
        await asyncio.sleep(random.uniform(0.3, 1.5))
        victim = random.choice(crew.processes)
        if random.random() < 0.5:
            crew.kill(victim)
            crew.start()
        else:
            os.kill(victim.pid, signal.SIGSTOP)
            await asyncio.sleep(LEASE_S * random.uniform(0.5, 2.5))
            os.kill(victim.pid, signal.SIGCONT)
    stop.set()
    await loading
    await eventually(crew.complete, timeout=60)
    await eventually(crew.nothing_pending)
    check(await crew.lines())

"""Owners that are killed and frozen, as real processes: nothing is lost, and order holds."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Collection
from functools import partial
from typing import Any

import pytest

from tests.plugins.redis.streams.crew import Crew, Line, check_order
from tests.plugins.redis.streams.member import LEASE_S, PARTITIONS
from tests.plugins.redis.streams.witness import Witness, witness
from tests.support.waiting import eventually


@pytest.fixture
async def crew(place: dict[str, Any]) -> AsyncIterator[Crew]:
    made = Crew(**place)
    try:
        yield made
    finally:
        await made.close()


def check(lines: dict[int, list[Line]], frozen: Collection[str] = ()) -> None:
    """What may come again comes again in order, and a former owner does nothing more.

    :param frozen: processes that may end what they had in hand when they go on; nothing can prevent
        it.
    """
    for partition, some in lines.items():
        check_order(partition, some)
        begun = {run: at for at, (run, _, _) in reversed(list(enumerate(some)))}
        order = sorted(begun, key=lambda run: begun[run])
        for run, successor in itertools.pairwise(order):
            late = [line for line in some[begun[successor] :] if line[0] == run]
            most = run.partition(":")[0] in frozen
            assert len(late) <= most, f"run {run} of partition {partition} went on: {late}"


async def check_acknowledgements(crew: Crew, book: Witness) -> None:
    """By the commands of the servers, each acknowledgement came from the owner; none is missing,
    and none came again: what is acknowledged is not delivered again."""
    await book.catch_up()
    assert book.wrong == []
    for partition in range(PARTITIONS):
        log = crew.orders.keys.log(partition)
        entries: Any = await crew.streams.link.command("XRANGE", log, "-", "+")
        assert sorted(book.acked[log]) == sorted(xid.decode() for xid, _ in entries)


@pytest.mark.chaos
@pytest.mark.row("R11", "R26", "R29")
async def test_the_partitions_of_a_killed_worker_continue_elsewhere(crew: Crew) -> None:
    """The next owner first gets its events in progress, in order and marked as recovering."""
    async with witness(crew.streams.link, crew.url) as book:
        for _ in range(2):
            crew.start()
        await eventually(partial(crew.share, 2))
        # 600 events take a tenth of a second, and a busy machine may kill too late.
        await crew.keep_busy(6000)
        crew.kill(crew.processes[0])
        assert not await crew.nothing_pending()
        assert not any(await crew.recovered())
        await crew.send(600)
        await eventually(crew.complete, timeout=LEASE_S * 2 + 8)
        await eventually(crew.nothing_pending)
        await check_acknowledgements(crew, book)
        check(await crew.lines())
        recovered = [first for first in await crew.recovered() if first]
        assert recovered
        assert recovered == [sorted(first) for first in recovered]


@pytest.mark.row("R11", "R27", "R29", "R30")
@pytest.mark.chaos
@pytest.mark.timeout(180)
@pytest.mark.parametrize("place", ["alone"], indirect=True)  # leases are the same on a cluster
async def test_owners_are_killed_and_frozen_in_a_loop(crew: Crew) -> None:
    assert await survive(crew, seconds=30), "no frozen owner has tried anything when it woke up"


async def survive(crew: Crew, seconds: int) -> bool:
    """Whether acknowledgements of former owners have arrived and were refused."""
    async with witness(crew.streams.link, crew.url) as book:
        for _ in range(3):
            crew.start()
        stop, frozen = asyncio.Event(), set[str]()

        async def load() -> None:
            while not stop.is_set():
                await crew.send(50)
                await asyncio.sleep(0.05)  # so that they keep up

        loading = asyncio.create_task(load())
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await disturb(crew, frozen)
        stop.set()
        await loading
        assert [process.poll() for process in crew.processes] == [None] * 3
        await eventually(crew.complete, timeout=60)
        await eventually(crew.nothing_pending)
        await check_acknowledgements(crew, book)
        check(await crew.lines(), frozen)
        return bool(book.late)


async def disturb(crew: Crew, frozen: set[str]) -> None:
    """Kill a worker and start another, or freeze one for up to a few leases."""
    await asyncio.sleep(random.uniform(0.3, 1.5))
    victim = random.choice(crew.processes)
    if random.random() < 0.5:
        crew.kill(victim)
        crew.start()
    else:
        await crew.keep_busy(600)  # so that it has something at hand
        frozen.add(str(victim.pid))
        os.kill(victim.pid, signal.SIGSTOP)
        await asyncio.sleep(LEASE_S * random.uniform(0.5, 2.5))
        os.kill(victim.pid, signal.SIGCONT)

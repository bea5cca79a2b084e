"""Workers of services are killed, frozen and told to end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import AsyncExitStack

import pytest

from chancy.plugins.redis.services.leases import Leases, Taken
from tests.plugins.redis.services.member import member
from tests.plugins.redis.services.shop import LEASE_S, Shop
from tests.support.waiting import eventually

#: Without a tick, of which there are a hundred in a second: whoever ticked has stopped.
_SILENT_S = 1.0


@pytest.mark.chaos
@pytest.mark.row("P30")
@pytest.mark.row("P43")
async def test_the_services_of_a_killed_worker_begin_once_more_elsewhere(alone: Shop) -> None:
    """Only the one that dies has a short lease: what the others begin they keep."""
    id = await alone.services.start("beat")
    with member(alone.url, lease_s=LEASE_S) as process:
        await eventually(lambda: len(alone.ticks(id)) > 3)
        async with AsyncExitStack() as stack:
            for _ in range(3):
                await stack.enter_async_context(alone.worker())
            process.kill()
            await eventually(lambda: {pid for pid, _ in alone.ticks(id)} > {process.pid})
            # For another sweep of each of them.
            await asyncio.sleep(LEASE_S)
            assert alone.notes(id) == ["begin ", "begin "]
            assert alone.waiting == []


@pytest.mark.chaos
@pytest.mark.row("P30", "P32")
async def test_workers_whose_clocks_are_wrong_keep_and_take_over_as_others(alone: Shop) -> None:
    """Five minutes each way: leases end by the clock of the server."""
    id = await alone.services.start("beat")
    with member(alone.url, lease_s=LEASE_S, skew_s=-300.0) as slow:
        await eventually(lambda: len(alone.ticks(id)) > 3)
        with member(alone.url, skew_s=300.0) as fast:
            # Long enough for the fast one to take it, if clocks of workers meant anything.
            await asyncio.sleep(2 * LEASE_S)
            assert {pid for pid, _ in alone.ticks(id)} == {slow.pid}
            slow.kill()
            await eventually(lambda: {pid for pid, _ in alone.ticks(id)} > {slow.pid})
            await asyncio.sleep(LEASE_S)
            assert alone.notes(id) == ["begin ", "begin "]
            fast.terminate()
            assert await asyncio.to_thread(fast.wait, 10) == 0
    assert await alone.state(id) == "WAIT"


@pytest.mark.chaos
@pytest.mark.row("P32")
@pytest.mark.parametrize("kind", ["beat", "thread-beat"])
async def test_a_worker_that_was_frozen_stops_what_another_runs(alone: Shop, kind: str) -> None:
    id = await alone.services.start(kind)
    with member(alone.url, lease_s=LEASE_S) as process:
        await eventually(lambda: len(alone.ticks(id)) > 3)
        process.send_signal(signal.SIGSTOP)
        async with alone.worker():
            await eventually(lambda: {pid for pid, _ in alone.ticks(id)} > {process.pid})
            process.send_signal(signal.SIGCONT)
            awake = time.time()

            def last() -> float:
                return max(at for pid, at in alone.ticks(id) if pid == process.pid)

            # It ticks each 10 ms, until it has found out and its instance has ended.
            await eventually(lambda: time.time() - max(awake, last()) > _SILENT_S)
            assert last() - awake < LEASE_S
            found = await alone.services.get(id)
            assert found is not None
            assert found.state == "RUNNING"
            assert f":{os.getpid()}:" in (found.owner or "")
            # The frozen one works on: what it does not run it may take.
            other = await alone.services.start(kind)
            await alone.services.stop(other)


@pytest.mark.row("P34")
@pytest.mark.row("P35")
@pytest.mark.row("P43")
@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.chaos), signal.SIGTERM]
)
async def test_a_worker_that_is_asked_to_end_releases_all(
    alone: Shop, number: signal.Signals
) -> None:
    ids = [await alone.services.start(kind) for kind in ("beat", "thread-beat")]
    with member(alone.url) as process:
        await eventually(lambda: all(len(alone.ticks(id)) > 3 for id in ids))
        process.send_signal(number)
        assert await asyncio.to_thread(process.wait, 10) == 0
    assert [await alone.state(id) for id in ids] == ["WAIT", "WAIT"]
    assert sorted(alone.waiting) == sorted(ids)
    async with alone.worker():
        await eventually(lambda: all({os.getpid()} < {p for p, _ in alone.ticks(i)} for i in ids))


@pytest.mark.row("P34")
async def test_a_signal_that_comes_twice_at_once_is_one(alone: Shop) -> None:
    """As of a terminal, and of the program that has started this one."""
    id = await alone.services.start("beat")
    with member(alone.url) as process:
        await eventually(lambda: len(alone.ticks(id)) > 3)
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        assert await asyncio.to_thread(process.wait, 10) == 0
    assert await alone.state(id) == "WAIT"


@pytest.mark.row("P35")
async def test_another_signal_ends_a_worker_whose_service_does_not(alone: Shop) -> None:
    id = await alone.services.start("stuck")
    with member(alone.url) as process:
        await eventually(lambda: alone.notes(id) == ["begin"])
        process.send_signal(signal.SIGTERM)
        await eventually(lambda: alone.notes(id) == ["begin", "stop"])
        # Signals within a second of its clock count as one: the next is to be a second one.
        await asyncio.sleep(1.1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 10) == 128 + signal.SIGTERM


@pytest.mark.row("P44")
async def test_an_id_whose_claim_was_answered_to_nobody_is_not_lost(alone: Shop) -> None:
    keys = alone.services.keys
    id = await alone.services.start("give", cleanup=False, value=1)
    (taken,) = Leases(alone.services.link, "gone", LEASE_S).claim(1)
    assert isinstance(taken, Taken)
    assert taken.id == id
    alone.raw.zadd(keys.leases, {id: 1}, xx=True)
    async with alone.worker(alone.declare(lease_s=LEASE_S)):
        await eventually(alone.is_state(id, "SUCCESS"))

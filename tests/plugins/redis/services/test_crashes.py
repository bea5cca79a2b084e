"""Workers of services are killed, frozen and stopped at any point of their work."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from functools import partial

import pytest

from chancy.plugins.redis.services.leases import Leases
from tests.plugins.redis.services.member import member
from tests.plugins.redis.services.shop import LEASE_S, Shop, take
from tests.support.waiting import eventually

#: Seconds without one of the hundred ticks a second after which a copy has stopped.
_SILENT_S = 1.0


@pytest.mark.chaos
@pytest.mark.row("P30", "P32")
async def test_workers_whose_clocks_are_wrong_keep_and_take_over_as_others(alone: Shop) -> None:
    """Five minutes each way: leases end by the clock of the server. What one of them has run begins
    once more elsewhere, however many others look for it."""
    id = await alone.services.start("beat")
    with member(alone.url, lease_s=LEASE_S, skew_s=-300.0) as slow:
        await eventually(lambda: len(alone.ticks(id)) > 3)
        async with alone.worker(), alone.worker():
            with member(alone.url, skew_s=300.0) as fast:
                # The fast worker would claim it in this time if the clocks of workers mattered.
                await asyncio.sleep(2 * LEASE_S)
                assert {pid for pid, _ in alone.ticks(id)} == {slow.pid}
                slow.kill()
                await eventually(lambda: {pid for pid, _ in alone.ticks(id)} > {slow.pid})
                # The time of another sweep of each worker.
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

            # It ticks each 10 ms until it has detected the loss and its instance has ended.
            await eventually(lambda: time.time() - max(awake, last()) > _SILENT_S)
            assert last() - awake < LEASE_S
            found = await alone.found(id)
            assert found.state == "RUNNING"
            assert f":{os.getpid()}:" in (found.owner or "")
            # The worker that was frozen continues, and may claim other services.
            other = await alone.services.start(kind)
            await alone.services.stop(other)


@pytest.mark.row("P34", "P35", "P43")
async def test_a_worker_that_is_asked_to_end_releases_all(alone: Shop) -> None:
    """Once, though signals come several times at once: of a terminal, and of another program."""
    ids = [await alone.services.start(kind) for kind in ("beat", "thread-beat")]
    with member(alone.url) as process:
        await eventually(lambda: all(len(alone.ticks(id)) > 3 for id in ids))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            process.send_signal(number)
        assert await asyncio.to_thread(process.wait, 30) == 0
    assert [await alone.state(id) for id in ids] == ["WAIT", "WAIT"]
    assert sorted(alone.waiting) == sorted(ids)
    async with alone.worker():
        await eventually(lambda: all({os.getpid()} < {p for p, _ in alone.ticks(i)} for i in ids))


@pytest.mark.row("P35")
async def test_another_signal_ends_a_worker_whose_service_does_not(alone: Shop) -> None:
    id = await alone.services.start("stuck")
    with member(alone.url) as process:
        await eventually(lambda: alone.notes(id) == ["begin"])
        process.send_signal(signal.SIGTERM)
        await eventually(lambda: alone.notes(id) == ["begin", "stop"])
        # Signals within a second count as one: the next must be a second one.
        await asyncio.sleep(1.1)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 128 + signal.SIGTERM


@pytest.mark.row("P44")
async def test_an_id_whose_claim_was_answered_to_nobody_is_not_lost(alone: Shop) -> None:
    keys = alone.services.keys
    id = await alone.services.start("give", cleanup=False, value=1)
    taken = take(Leases(alone.services.link, "gone", LEASE_S))
    assert taken.id == id
    alone.raw.zadd(keys.leases, {id: 1}, xx=True)
    async with alone.worker(alone.declare(lease_s=LEASE_S)):
        await eventually(alone.is_state(id, "SUCCESS"))


@pytest.mark.chaos
@pytest.mark.row("P16", "P44")
async def test_workers_are_killed_as_they_take_and_end_services(alone: Shop) -> None:
    """Each id ends, and is in one list at a time, at whatever point its workers die."""
    ids = [await alone.services.start("give", value=number) for number in range(400)]
    rounds, died = 0, set[tuple[str, str | None]]()
    while alone.waiting and rounds < 30:
        rounds += 1
        with member(alone.url, cleanup=False, concurrency=4, lease_s=LEASE_S) as process:
            before = alone.raw.llen("note:given")
            await eventually(partial(_has_more, alone, before))
            # At a random time while it claims and ends services.
            await asyncio.sleep(random.uniform(0, 0.05))
            process.kill()
            process.wait()
        listed = await alone.services.list()
        found = [*listed.new, *listed.active, *listed.ended]
        assert sorted(found) == sorted(ids), "each is in one list"
        died |= {(id, (await alone.found(id)).owner) for id in listed.active}
    assert rounds > 3
    async with alone.worker(alone.declare(cleanup=False)):
        await eventually(lambda: alone.raw.llen(alone.services.keys.ended) == len(ids))
    listed = await alone.services.list()
    assert (listed.new, listed.active, sorted(listed.ended)) == ([], [], sorted(ids))
    # Each at least once, and again only if its worker died while it had it.
    runs = Counter(alone.notes("given"))
    assert runs.keys() == set(ids)
    assert runs <= Counter(ids) + Counter(id for id, _ in died)


def _has_more(place: Shop, before: int) -> bool:
    return bool(place.raw.llen("note:given") > before)

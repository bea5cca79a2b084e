"""Workers of services are killed and frozen in a loop, at whatever they are doing."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import ExitStack
from functools import partial

import pytest

from tests.plugins.redis.services.member import member
from tests.plugins.redis.services.shop import LEASE_S, Shop
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos


@pytest.mark.row("P16")
@pytest.mark.row("P44")
async def test_workers_are_killed_as_they_take_and_end_services(alone: Shop) -> None:
    """Each id ends, and is in one list at a time, wherever its workers die."""
    ids = [await alone.services.start("give", value=number) for number in range(400)]
    rounds = 0
    while alone.waiting and rounds < 30:
        rounds += 1
        with member(alone.url, cleanup=False, concurrency=4, lease_s=LEASE_S) as process:
            before = alone.raw.llen("note:given")
            await eventually(partial(_has_more, alone, before))
            # At any moment of taking and ending them.
            await asyncio.sleep(random.uniform(0, 0.05))
            process.kill()
            process.wait()
        listed = await alone.services.list()
        found = [*listed.new, *listed.active, *listed.ended]
        assert sorted(found) == sorted(ids), "each is in one list"
    assert rounds > 3
    async with alone.worker(alone.declare(cleanup=False)):
        await eventually(lambda: alone.raw.llen(alone.services.keys.ended) == len(ids))
    listed = await alone.services.list()
    assert (listed.new, listed.active, sorted(listed.ended)) == ([], [], sorted(ids))
    # At least once each; again only where a worker died with it.
    runs = alone.notes("given")
    assert set(runs) == set(ids)
    assert len(runs) - len(ids) <= 4 * rounds


def _has_more(place: Shop, before: int) -> bool:
    return bool(place.raw.llen("note:given") > before)


@pytest.mark.row("P32")
async def test_workers_are_frozen_and_killed_under_services(alone: Shop) -> None:
    """After each round every service runs, once."""
    ids = [await alone.services.start("beat") for _ in range(6)]
    with ExitStack() as stack:
        members = [stack.enter_context(member(alone.url, lease_s=LEASE_S)) for _ in range(3)]
        await eventually(lambda: all(alone.has_ticked(id) for id in ids))
        for turn in range(6):
            victim = random.randrange(len(members))
            if turn % 2:
                members[victim].kill()
                members[victim].wait()
                members[victim] = stack.enter_context(member(alone.url, lease_s=LEASE_S))
            else:
                members[victim].send_signal(signal.SIGSTOP)
                await asyncio.sleep(LEASE_S * random.uniform(0.5, 2.0))
                members[victim].send_signal(signal.SIGCONT)
            await asyncio.sleep(2 * LEASE_S)
            counts = {id: alone.raw.llen(f"ticks:{id}") for id in ids}
            await asyncio.sleep(1.0)
            for id in ids:
                fresh = alone.ticks(id)[counts[id] :]
                assert len({pid for pid, _ in fresh}) == 1, "one instance"

"""Workers of services are killed and frozen in a loop, at whatever they are doing."""

from __future__ import annotations

import asyncio
import random
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

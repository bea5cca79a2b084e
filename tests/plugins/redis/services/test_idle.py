"""Idle workers make few calls, and their waits end when there is work for them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from chancy.plugins.redis.services import runtime, supervision
from chancy.plugins.redis.services.leases import Leases
from chancy.plugins.redis.services.supervision import sweep
from tests.plugins.redis.services.shop import LEASE_S, Shop
from tests.support.redis_commands import command_sync
from tests.support.waiting import eventually


async def test_an_idle_worker_makes_few_calls(apart: Shop) -> None:
    def calls(command: str) -> int:
        found = apart.raw.info("commandstats").get(f"cmdstat_{command}", {})
        return int(found.get("calls", 0))

    # The worker sweeps each half second.
    async with apart.worker(apart.declare(lease_s=2.5)):
        await eventually(lambda: calls("sscan") > 0)
        command_sync(apart.raw, "CONFIG", "RESETSTAT")
        await eventually(lambda: calls("sscan") >= 5)
        # Claims, cleanups and sweeps, all of them once more after the machine has stood still.
        assert calls("xread") <= 5
        assert calls("evalsha") <= 24


@pytest.fixture
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make idle waits outlast each test."""
    monkeypatch.setattr(supervision, "_IDLE_S", 600.0)
    monkeypatch.setattr(runtime, "_PATIENCE_S", 1000.0)


@pytest.mark.usefixtures("long_waits")
async def test_a_start_a_local_service_and_a_stop_end_the_wait_of_an_idle_worker(
    place: Shop,
) -> None:
    worker = place.declare(monitor=False)
    async with asyncio.timeout(60):
        async with place.worker(worker):
            await eventually(lambda: is_waiting(place))
            id = await place.services.start("beat")
            await eventually(lambda: place.has_ticked(id))
            await eventually(lambda: is_waiting(place))
            local = worker.start_local("beat")
            await eventually(lambda: place.has_ticked(local))
            await eventually(lambda: is_waiting(place))
        assert place.waiting == [id]


def is_waiting(place: Shop, workers: int = 1) -> bool:
    """Whether this many workers wait for queued services."""
    found = place.raw.info("clients", target_nodes="primaries") if place.cluster else {}
    each = found.values() if found else [place.raw.info("clients")]
    return int(sum(one["blocked_clients"] for one in each)) == workers


@pytest.mark.usefixtures("long_waits")
async def test_a_release_ends_the_wait_of_an_idle_worker(alone: Shop) -> None:
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as idle:
        id = await alone.services.start("beat")
        async with alone.worker(alone.declare(monitor=False)):
            await eventually(lambda: alone.has_ticked(id))
            await idle.enter_async_context(alone.worker(alone.declare(monitor=False)))
            await eventually(lambda: is_waiting(alone, 2))
        await eventually(lambda: alone.notes(f"course:{id}") == ["begin", "end", "begin"])


async def test_a_sweep_is_skipped_after_that_of_another_worker(alone: Shop) -> None:
    leases = Leases(alone.services.link, "mine", LEASE_S)
    assert sweep(leases, keep_s=60.0, every_s=60.0)
    assert not sweep(leases, keep_s=60.0, every_s=60.0)
    assert sweep(leases, keep_s=60.0)

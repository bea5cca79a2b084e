"""Ended services: those that are kept, and those that are removed after their handler."""

from __future__ import annotations

import pytest

from chancy.plugins.redis.services import supervision
from chancy.plugins.redis.services.leases import Leases
from tests.plugins.redis.services.shop import LEASE_S, Shop
from tests.support.redis_commands import command_sync
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workers of this process check for ended services more often."""
    monkeypatch.setattr(supervision, "_TIDY_EVERY_S", 0.1)


@pytest.mark.row("P17")
async def test_kept_services_are_listed_until_they_expire(alone: Shop) -> None:
    id = await alone.services.start("give", cleanup=False)
    async with alone.worker():
        await eventually(alone.is_state(id, "SUCCESS"))
        listed = await alone.services.list()
        assert (listed.active, listed.ended) == ([id], [])
    async with alone.worker(alone.declare(lease_s=LEASE_S, keep_s=0.1)):
        await eventually(alone.is_state(id, None))
    assert (await alone.services.list()).active == []


@pytest.mark.row("P16", "P18", "P42")
async def test_ended_services_are_removed_with_and_without_a_handler(place: Shop) -> None:
    id = await place.services.start("give", value=3)
    async with place.worker(place.declare(cleanup=False)):
        await eventually(place.is_state(id, "SUCCESS"))
    listed = await place.services.list()
    assert (listed.new, listed.active, listed.ended) == ([], [], [id])
    seen: list[tuple[str, dict[str, str]]] = []
    async with place.worker(place.declare(handler=lambda *given: seen.append(given))):
        await eventually(place.is_state(id, None))
        await place.services.start("give", id="again")
        await eventually(lambda: len(seen) == 2)
        await eventually(place.is_state("again", None))
    assert seen[0][0] == id
    fields = seen[0][1]
    assert (fields["task"], fields["state"], fields["output"]) == ("give", "SUCCESS", "3")
    async with place.worker():
        id = await place.services.start("give")
        await eventually(place.is_state(id, None))
    keys = place.services.keys
    left = {
        name for key in (*keys.script_keys, keys.leases) for name in [key] if place.raw.exists(name)
    }
    assert left == set()


async def test_ended_services_are_removed_without_a_list_scan(
    apart: Shop,
) -> None:
    """With 100,000 of them each check blocked the server for a millisecond."""
    keys = apart.services.keys
    for number in range(300):
        apart.raw.hset(keys.of(f"g{number}"), mapping={"task": "give", "state": "SUCCESS"})
    apart.raw.lpush(keys.ended, *(f"g{number}" for number in range(200)))
    apart.raw.zadd(f"{keys.waiting}:kept", {f"g{number}": 1 for number in range(200, 300)})
    leases = Leases(apart.services.link, "mine", LEASE_S)
    command_sync(apart.raw, "CONFIG", "RESETSTAT")
    for _ in range(4):
        assert len(leases.tidy(40, 60.0, drop=True)) == 40
    for one in leases.tidy(40, 60.0, drop=False):
        assert leases.clean(one)
    leases.sweep(keep_s=1.0, adopt_s=60.0)
    assert not apart.raw.keys(keys.of("*"))
    assert "cmdstat_lrem" not in apart.raw.info("commandstats")


@pytest.mark.row("P19")
async def test_a_cleanup_whose_worker_was_killed_is_repeated(alone: Shop) -> None:
    id = await alone.services.start("give")
    async with alone.worker(alone.declare(cleanup=False)):
        await eventually(alone.is_state(id, "SUCCESS"))
    # As a worker that is killed while its handler runs.
    [ended] = Leases(alone.services.link, "gone", LEASE_S).tidy(1, 0.3, drop=False)
    assert ended.id == id
    seen: list[str] = []
    # Its sweeps, five in each lease, find services whose cleanup was abandoned.
    worker = alone.declare(lease_s=LEASE_S, handler=lambda id, fields: seen.append(id))
    async with alone.worker(worker):
        await eventually(alone.is_state(id, None))
    assert seen == [id]


@pytest.mark.chaos
async def test_a_handler_that_fails_is_called_up_to_five_times(alone: Shop) -> None:
    id = await alone.services.start("give")
    calls: list[str] = []

    def fail(id: str, fields: dict[str, str]) -> None:
        calls.append(id)
        raise RuntimeError("no")

    # If a call takes longer than `handler_s`, as on a busy machine, there would be a sixth one.
    worker = alone.declare(lease_s=LEASE_S, handler=fail, handler_s=0.5)
    async with alone.worker(worker):
        await eventually(alone.is_state(id, None))
    assert calls == [id] * 5


@pytest.mark.row("P18")
async def test_a_handler_that_exits_ends_no_cleanup(alone: Shop) -> None:
    ids = [await alone.services.start("give") for _ in range(2)]
    calls: list[str] = []
    seen: list[BaseException] = []

    def exit_once(id: str, fields: dict[str, str]) -> None:
        calls.append(id)
        if len(calls) == 1:
            raise SystemExit(3)

    worker = alone.declare(lease_s=LEASE_S, handler=exit_once, handler_s=0.2)
    worker.on_exception(seen.append)
    async with alone.worker(worker):
        for id in ids:
            await eventually(alone.is_state(id, None))
    assert [type(one) for one in seen] == [SystemExit]

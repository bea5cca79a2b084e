"""Keys that somebody has deleted: jobs that have a record are found again, and run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chancy.attempt.claim import Claim
from chancy.broker.values import JobFilter
from chancy.job.unique import UniqueKey
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.plugins.redis.maintenance.doctor import examine
from chancy.plugins.redis.maintenance.repair import Repair
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement

#: More than a script looks at.
MANY = 150


@pytest.fixture
async def broker(redis_url: str) -> AsyncIterator[RedisBroker]:
    made = RedisBroker(RedisSettings(url=redis_url, keep_failed=MANY))
    await made.open()
    yield made
    await made.close()


async def delete(broker: RedisBroker, name: str) -> None:
    assert await broker.client.command("DEL", broker.tag.encode() + name.encode()) == 1


async def restored(broker: RedisBroker) -> int:
    found = await Repair(broker.client).turn()
    assert await Repair(broker.client).differences() == (0, 0, 0)
    return found


async def test_pending_jobs_run_in_their_order(
    bench: Bench, broker: RedisBroker, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = [prepared(priority=n % 2) for n in range(MANY)]
    await bench.push(*jobs)
    await delete(broker, ":r:default")
    later = prepared(priority=1)
    await bench.push(later)
    [about] = [one for one in await examine(broker.settings) if one.about == "lists of jobs"]
    assert not about.ok
    assert f"{MANY} pending" in about.found
    subscription = await broker.subscribe()
    await Upkeep(broker.client).turn()
    assert f"redis_restored jobs={MANY} pending={MANY}" in caplog.text
    [woken] = {notice.token for notice in await subscription.receive(5.0)}
    assert woken == "default"
    wanted = [job.id for job in sorted([*jobs, later], key=lambda job: -job.priority)]
    assert [claim.id for claim in await bench.claim(1_000)] == wanted
    assert await restored(broker) == 0
    [about] = [one for one in await examine(broker.settings) if one.about == "lists of jobs"]
    assert about.ok


async def test_scheduled_jobs_are_promoted(bench: Bench, broker: RedisBroker) -> None:
    await bench.push(*(prepared(delay_s=0.001) for _ in range(MANY)))
    await delete(broker, ":due")
    assert (await broker.promote(1_000)).promoted == 0
    assert await restored(broker) == MANY
    assert (await broker.promote(1_000)).promoted == MANY
    assert (await broker.counts())["default"].pending == MANY


@pytest.mark.parametrize("name", [":holders", ":w:"])
async def test_running_jobs_are_rescued(bench: Bench, broker: RedisBroker, name: str) -> None:
    await bench.push(*(prepared() for _ in range(MANY)))
    claims = await bench.claim(MANY)
    if name == ":w:":
        key = broker.tag.encode() + name.encode() + bench.worker_id.bytes
        assert await broker.client.command("DEL", key) == 1
    else:
        await delete(broker, name)
    assert await broker.orphans(silent_s=0.0, limit=MANY) == []
    assert await restored(broker) == (MANY if name == ":w:" else 1)
    orphans: list[Claim] = []
    while some := await broker.orphans(silent_s=0.0, limit=MANY):
        orphans += some
        await bench.settle(*(settlement(one, State.PENDING) for one in some))
    assert {one.id for one in orphans} == {one.id for one in claims}


async def test_jobs_are_found_and_keys_are_held(bench: Bench, broker: RedisBroker) -> None:
    """The list of all, which nothing is counted by, is put back with the others."""
    keyed = prepared(unique=UniqueKey(b"once"))
    jobs = [keyed, *(prepared() for _ in range(MANY))]
    [ended] = await bench.running()
    await bench.settle(settlement(ended, State.FAILED))
    await bench.push(*jobs)
    for name in (":ids", ":u", ":dead", ":r:default"):
        await delete(broker, name)
    assert await restored(broker) == MANY + 2
    found = await broker.find(JobFilter(limit=1_000))
    assert {job.id for job in found} == {ended.id, *(job.id for job in jobs)}
    again = prepared(unique=UniqueKey(b"once"))
    assert await broker.push([again]) == {again.id: keyed.id}
    assert await broker.client.command("ZCARD", f"{broker.tag}:dead") == 1


async def test_what_is_gone_altogether_is_looked_for_once(
    bench: Bench, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [*(prepared() for _ in range(3)), *(prepared(delay_s=60.0) for _ in range(3))]
    await bench.push(*jobs)
    # With fewer that wait for their time all counters would be mended.
    await bench.push(*(prepared(delay_s=60.0) for _ in range(MANY)))
    for job in jobs:
        await delete_record(broker, job.id.bytes)
        await broker.client.command("ZREM", f"{broker.tag}:due", job.id.bytes)
    await delete(broker, ":r:default")
    command, scans = broker.client.command, list[Any]()

    async def counting(*parts: Any) -> Any:
        scans.extend(part for part in parts[:1] if part == "SCAN")
        return await command(*parts)

    monkeypatch.setattr(broker.client, "command", counting)
    assert await Repair(broker.client).turn() == 0
    assert scans
    assert (await broker.counts())["default"] == (0, 0, MANY + 3)
    scans.clear()
    assert await Repair(broker.client).turn() == 0
    assert not scans


async def delete_record(broker: RedisBroker, id: bytes) -> None:
    assert await broker.client.command("DEL", broker.tag.encode() + b":j:" + id) == 1


async def test_counters_say_again_what_there_is(bench: Bench, broker: RedisBroker) -> None:
    """They are deleted while jobs wait and run, some of which end."""
    await bench.push(*(prepared() for _ in range(MANY)))
    await bench.push(*(prepared(delay_s=3600.0) for _ in range(20)))
    claims = await bench.claim(10)
    await delete(broker, ":n")
    await bench.settle(*(settlement(one, State.SUCCEEDED) for one in claims[:7]))
    assert (await broker.counts())["default"] == (0, 0, 0)
    await restored(broker)
    assert (await broker.counts())["default"] == (MANY - 10, 3, 20)
    await bench.settle(*(settlement(one, State.SUCCEEDED) for one in claims[7:]))
    assert (await broker.counts())["default"] == (MANY - 10, 0, 20)

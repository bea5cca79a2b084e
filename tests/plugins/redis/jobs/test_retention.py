"""How much the broker on Redis keeps, and that it leaves nothing behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chancy.attempt.settlement import Note
from chancy.broker.values import JobFilter
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.support.redis_commands import scripts_of
from tests.support.waiting import eventually


@pytest.mark.row("F18")
async def test_finished_jobs_are_kept_up_to_a_number_and_an_age(redis_url: str) -> None:
    settings = RedisSettings(url=redis_url, keep_finished=10, keep_failed=5)
    broker = RedisBroker(settings)
    short = RedisBroker(settings.model_copy(update={"keep_failed_s": 0.001}))
    await broker.open()
    await short.open()
    try:
        bench = Bench(broker)
        await bench.prepare()
        ids = []
        for state in (State.SUCCEEDED, State.FAILED):
            claims = await bench.running(*(prepared() for _ in range(30)))
            await bench.settle(*(settlement(claim, state) for claim in claims))
            ids.append([claim.id for claim in claims])
        assert len(await broker.get(ids[0])) == 10
        kept = await broker.get(ids[1])
        assert len(kept) == 5
        # Those over their age are gone for whoever looks, before anybody has cleared them away.
        for look in (short.get, short.watch):

            async def gone(look: Any = look) -> bool:
                return not await look(ids[1])

            await eventually(gone, timeout=5)
            assert len(await look(ids[0])) == 10
        assert {job.id for job in await short.find(JobFilter())} == set(await broker.get(ids[0]))
        assert len(await broker.find(JobFilter())) == 15
        link = short.client
        assert await Upkeep(link).turn() == 5
        # The next turn is somebody else's.
        assert await Upkeep(link).turn() == 0
        names = {key async for key in _job_keys(broker)}
        assert len(names) == 10
    finally:
        await short.close()
        await broker.close()


async def _job_keys(broker: RedisBroker) -> AsyncIterator[bytes]:
    for key in await broker.client.command("KEYS", f"{broker.tag}:j:*"):
        yield key


async def test_a_finished_run_leaves_no_state_behind(redis_url: str) -> None:
    broker = RedisBroker(RedisSettings(url=redis_url))
    await broker.open()
    try:
        bench = Bench(broker)
        await bench.prepare(Queue(name="default", keep_finished=False))
        claims = await bench.running(*(prepared() for _ in range(20)))
        await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
        await broker.orphans(heartbeat_age_s=0.0, limit=10)
        left = {key.decode() async for key in _all_keys(broker)}
        tag = broker.tag
        # That they ran is known for half a minute to a push that is repeated.
        left -= {key for key in left if key.startswith((f"{tag}:told:", f"{tag}:gone:"))}
        assert left == {f"{tag}:{name}" for name in ("queues", "brief", "position")}
    finally:
        await broker.close()


async def _all_keys(broker: RedisBroker) -> AsyncIterator[bytes]:
    for key in await broker.client.command("KEYS", f"{broker.tag}*"):
        yield key


async def test_a_note_after_note_does_not_grow(redis_url: str) -> None:
    broker = RedisBroker(RedisSettings(url=redis_url))
    await broker.open()
    try:
        bench = Bench(broker)
        await bench.prepare()
        [claim] = await bench.running(prepared(meta='{"kept": 1}'))
        for number in range(100):
            note = Note(claim.id, claim.lease, f'{{"said": {number}}}')
            assert await broker.update_meta([note]) == frozenset()
        [record] = await broker.client.run("fetch", 0, 0, claim.id.bytes)
        assert record.count(b"said") < 40
        assert (await bench.job(claim.id)).meta == {"kept": 1, "said": 99}
    finally:
        await broker.close()


def test_every_script_is_part_of_the_package() -> None:
    scripts = scripts_of("jobs")
    assert {"push", "claim", "settle", "promote", "cancel"} <= scripts.keys()
    assert all("--@include" not in script.text for script in scripts.values())


async def test_counting_a_queue_reads_no_jobs(redis_url: str) -> None:
    broker = RedisBroker(RedisSettings(url=redis_url))
    await broker.open()
    try:
        bench = Bench(broker)
        await bench.prepare()
        await bench.running(*(prepared() for _ in range(5)))
        await bench.push(*(prepared() for _ in range(5)))
        await bench.push(*(prepared(delay_s=60.0) for _ in range(5)))
        assert await broker.client.run("listed", "default", 0) == [15, 0, 0, [], [], []]
        kept, done, dead, *lists = await broker.client.run("listed", "default", 2)
        assert (kept, done, dead) == (15, 0, 0)
        assert [len(one) for one in lists] == [4, 4, 4]
    finally:
        await broker.close()

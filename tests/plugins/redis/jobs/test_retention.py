"""How much the broker on Redis keeps, and that it leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from chancy.broker.values import JobFilter
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import prepared, settlement
from tests.plugins.redis.jobs.brokers import opened
from tests.support.waiting import eventually


@pytest.mark.row("F18")
async def test_finished_jobs_are_kept_up_to_a_number_and_an_age(redis_url: str) -> None:
    kept = {"keep_finished": 10, "keep_failed": 5}
    async with (
        opened(redis_url, **kept) as (broker, bench),
        opened(redis_url, **kept, keep_failed_s=0.001) as (short, _),
    ):
        ids = []
        for state in (State.SUCCEEDED, State.FAILED):
            claims = await bench.running(*(prepared() for _ in range(30)))
            await bench.settle(*(settlement(claim, state) for claim in claims))
            ids.append([claim.id for claim in claims])
        assert len(await broker.get(ids[0])) == 10
        assert len(await broker.get(ids[1])) == 5
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
        assert len(await broker.client.command("KEYS", f"{broker.tag}:j:*")) == 10


async def test_a_finished_run_leaves_no_state_behind(redis_url: str) -> None:
    queue = Queue(name="default", keep_finished=False)
    async with opened(redis_url, queue) as (broker, bench):
        claims = await bench.running(*(prepared() for _ in range(20)))
        await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
        await broker.orphans(heartbeat_age_s=0.0, limit=10)
        left = {key.decode() for key in await broker.client.command("KEYS", f"{broker.tag}*")}
        tag = broker.tag
        # That they ran is known for half a minute to a push that is repeated; the worker is woken
        # until others claim.
        passing = tuple(f"{tag}:{name}:" for name in ("told", "gone", "idle"))
        left -= {key for key in left if key.startswith(passing)}
        assert left == {f"{tag}:{name}" for name in ("queues", "brief", "position")}


async def test_counting_a_queue_reads_no_jobs(redis_url: str) -> None:
    async with opened(redis_url) as (broker, bench):
        await bench.running(*(prepared() for _ in range(5)))
        await bench.push(*(prepared() for _ in range(5)))
        await bench.push(*(prepared(delay_s=60.0) for _ in range(5)))
        assert await broker.client.run("listed", "default", 0) == [15, 0, 0, [], [], []]
        kept, done, dead, *lists = await broker.client.run("listed", "default", 2)
        assert (kept, done, dead) == (15, 0, 0)
        assert [len(one) for one in lists] == [4, 4, 4]

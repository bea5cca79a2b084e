"""Jobs of a Redis queue that come to Postgres all the same: by the clock, by a replay, by SQL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from chancy import Chancy, Queue, State
from chancy.broker import JobFilter, SqlStore
from chancy.job import job
from chancy.plugins.cron import Cron, Entry, Overlap
from chancy.plugins.leadership import Leadership
from chancy.plugins.redis import RedisPlugin
from chancy.worker.worker import Worker
from tests.waiting import eventually

#: Its worker runs one job at a time.
FAST = Queue(name="fast", executor="async", concurrency=1, broker="redis")

began: list[str] = []
at_once: list[int] = []
running = 0


@job(queue="fast")
async def take(name: str, seconds: float = 0.0) -> str:
    global running
    running += 1
    began.append(name)
    at_once.append(running)
    await asyncio.sleep(seconds)
    running -= 1
    return name


ARGUMENTS = '{"name": "sql"}'
TICK = take.job(name="tick", seconds=1.2)


@pytest.fixture
def cron() -> Cron:
    """One for each database: it stores its entries once in the life of a process."""
    return Cron(Entry("often", "* * * * * *", TICK, overlap=Overlap.SKIP), poll_s=0.2)


@pytest.fixture
async def chancy(dsn: str, redis_url: str, cron: Cron) -> AsyncIterator[Chancy]:
    began.clear()
    at_once.clear()
    plugins = [RedisPlugin(url=redis_url), Leadership(lease_s=1.0), cron]
    async with Chancy(
        dsn, queues=[FAST], plugins=plugins, pool_size=3, no_default_plugins=True
    ) as made:
        await made.migrate()
        yield made


async def test_ticks_run_beside_jobs_of_redis_and_do_not_overlap(
    chancy: Chancy, cron: Cron
) -> None:
    """One job of the queue at a time, wherever it is; a tick is left out while one runs."""
    async with Worker(chancy):
        await eventually(lambda: began.count("tick") == 1)
        references = [await chancy.push(take.job(name="pushed")) for _ in range(3)]
        for reference in references:
            assert await reference.result(20) == "pushed"
        await eventually(lambda: began.count("tick") == 2, timeout=20)
        fired = await cron.history(chancy, "often")
    assert {one.skipped for one in fired} >= {None, "overlap"}, "1.2 s each second"
    assert max(at_once) == 1


async def test_what_sql_has_pushed_is_run(chancy: Chancy) -> None:
    assert isinstance(chancy.broker, SqlStore)
    async with Worker(chancy):
        func = f"{take.__module__}.take"
        await chancy.broker.fetch(
            "select chancy.push('fast', $1, $2::text::jsonb)", func, ARGUMENTS
        )
        await eventually(lambda: "sql" in began)
    found = await chancy.control.find(JobFilter(states=frozenset({State.SUCCEEDED})))
    assert json.loads(ARGUMENTS) in [one.arguments for one in found]

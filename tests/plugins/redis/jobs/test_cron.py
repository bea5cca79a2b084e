"""Ticks of cron whose queue is in Redis: their jobs go there, and are run from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from chancy import Chancy, Queue, State
from chancy.job.definition import job
from chancy.plugins.cron import Cron, Entry, Overlap
from chancy.plugins.leadership import Leadership
from chancy.plugins.redis import RedisPlugin
from chancy.worker.worker import Worker
from tests.plugins.redis.jobs.errand_fleet import rows
from tests.plugins.redis.relay.moving import plane
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

#: Its worker runs one job at a time.
FAST = Queue(name="fast", executor="async", concurrency=1, broker="redis")

began: list[str] = []
at_once: list[int] = []
running = 0
released = False


@job(queue="fast")
async def take(name: str, seconds: float = 0.0, held: bool = False) -> str:
    global running
    running += 1
    began.append(name)
    at_once.append(running)
    await asyncio.sleep(seconds)
    if held:
        await eventually(lambda: released)
    running -= 1
    return name


TICK = take.job(name="tick", held=True)


@asynccontextmanager
async def application(dsn: str, url: str, cron: Cron) -> AsyncGenerator[Chancy]:
    global running, released
    began.clear()
    at_once.clear()
    running, released = 0, False
    plugins = [RedisPlugin(url=url), Leadership(lease_s=1.0), cron]
    async with Chancy(
        dsn, queues=[FAST], plugins=plugins, pool_size=3, no_default_plugins=True
    ) as made:
        yield made


@pytest.fixture
def cron() -> Cron:
    return Cron(Entry("often", "* * * * * *", TICK, overlap=Overlap.SKIP), poll_s=0.2)


@pytest.fixture
async def chancy(dsn: str, redis_url: str, cron: Cron) -> AsyncIterator[Chancy]:
    async with application(dsn, redis_url, cron) as made:
        yield made


async def left_postgres(chancy: Chancy) -> bool:
    """It has unfinished jobs until Redis has said that it does."""
    return await rows(chancy, "jobs") == 0


async def test_ticks_run_in_redis_and_do_not_overlap(chancy: Chancy, cron: Cron) -> None:
    """One job of the queue at a time; a tick is left out while one runs."""
    global released

    async def skipped() -> set[str | None]:
        found = {one.skipped for one in await cron.history(chancy, "often")}
        return found & {"overlap"}

    async with Worker(chancy):
        await eventually(lambda: began.count("tick") == 1)
        await eventually(skipped)
        fired = await cron.history(chancy, "often")
        [id] = [one.job_id for one in fired if one.job_id is not None]
        stored = (await (await plane(chancy)).get([id]))[id]
        assert (stored.state, stored.attempt) == (State.RUNNING, 1)
        assert stored.meta["cron"]["entry"] == "often"
        await eventually(lambda: left_postgres(chancy))
        pushed = await chancy.push(take.job(name="pushed"))
        released = True
        assert (await chancy.wait_for(id, 30)).result == "tick"
        assert await pushed.result(30) == "pushed"
        await eventually(lambda: began.count("tick") >= 2)
        assert await cron.pause(chancy, "often")
        await eventually(lambda: left_postgres(chancy))
    assert max(at_once) == 1
    assert await rows(chancy, "redis_moves") == 0
    assert await chancy.control.get([id]) == {}, "neither did it end in Postgres"


@pytest.mark.chaos
async def test_a_tick_waits_while_the_state_of_the_last_job_is_unknown(
    dsn: str, own_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    """Redis goes away in the midst of a job: no tick is fired until it is back."""
    server = own_redis(appendonly="yes")
    slow = take.job(name="slow", seconds=2.0)
    cron = Cron(Entry("slow", "* * * * * *", slow, overlap=Overlap.SKIP), poll_s=0.1)
    async with application(dsn, server.url, cron) as chancy, Worker(chancy):
        await eventually(lambda: began.count("slow") == 1)
        server.kill()
        await eventually(lambda: "cron_postponed entry='slow'" in caplog.text)
        [standing] = await cron.get_all(chancy)
        assert standing.problem is not None
        assert "does not respond" in standing.problem
        fired = [one for one in await cron.history(chancy, "slow") if one.job_id is not None]
        assert len(fired) == 1
        await asyncio.to_thread(server.start)
        await eventually(lambda: began.count("slow") >= 2, timeout=30)
        assert max(at_once) == 1
        [standing] = await cron.get_all(chancy)
        assert standing.problem is None

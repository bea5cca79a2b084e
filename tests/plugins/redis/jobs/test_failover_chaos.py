"""A primary dies while jobs are pushed and run, and its replica takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from uuid import UUID

import pytest

from chancy import Chancy, Queue, Reference, Worker
from chancy.errors import BrokerUnavailable
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisBroker, RedisPlugin, RedisSettings
from chancy.testing.conformance.bench import Bench, prepared
from tests.plugins.redis.jobs.test_durability_chaos import follow, in_step, promote
from tests.support import jobs
from tests.support.proxy import Proxy
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.chaos

Start = Callable[..., RedisServer]
HERE = "127.0.0.1"
QUEUE = Queue(name="far", executor="async", broker="redis")


class Pair:
    """A primary and its replica, the line between them, and the one to whoever is in charge."""

    def __init__(self, start: Start, way: Proxy, between: Proxy) -> None:
        self.primary, self.replica = start(), start()
        self.way, self.between = way, between

    async def begin(self) -> None:
        self.way.target = self.between.target = (HERE, self.primary.port)
        follow(self.replica, self.between.port)
        await eventually(lambda: in_step(self.replica, self.primary))

    def fail_over(self) -> None:
        self.primary.kill()
        promote(self.replica)
        self.way.target = (HERE, self.replica.port)
        self.way.cut()

    @property
    def url(self) -> str:
        return f"redis://{HERE}:{self.way.port}/0"


@pytest.fixture
def pair(own_redis: Start) -> Iterator[Pair]:
    with Proxy(HERE, 0) as way, Proxy(HERE, 0) as between:
        yield Pair(own_redis, way, between)


@pytest.mark.parametrize("replicas", [0, 1])
async def test_replicated_jobs_survive_a_failover(pair: Pair, replicas: int) -> None:
    """Without waiting for them, what was acknowledged after the line broke is lost."""
    await pair.begin()
    settings = RedisSettings(url=pair.url, timeout_s=1.0, connect_timeout_s=0.5, replicas=replicas)
    broker = RedisBroker(settings)
    await broker.open()
    told: list[UUID] = []

    async def push_for_ever(count: int) -> None:
        with suppress(BrokerUnavailable):
            while True:
                some = [prepared() for _ in range(count)]
                await broker.push(some)
                told.extend(job.id for job in some)

    try:
        await Bench(broker).prepare()
        pushing = [asyncio.create_task(push_for_ever(count)) for count in (1, 10, 300)]
        await eventually(lambda: len(told) > 2_000, timeout=30)
        pair.between.black_hole()
        before = len(told)
        if not replicas:
            await eventually(lambda: len(told) > before + 1_000, timeout=30)
        pair.fail_over()
        done, _ = await asyncio.wait(pushing, timeout=0 if not replicas else 8)
        for task in pushing:
            task.cancel()
        await asyncio.gather(*pushing, return_exceptions=True)
        if replicas:
            # The one that took over has no replica: no push can say that it lasts.
            assert len(done) == len(pushing)
        there = await broker.get(told)
        lost = [id for id in told if id not in there]
        assert bool(lost) == (replicas == 0)
    finally:
        await broker.close()


async def test_a_worker_runs_all_that_was_acknowledged_before_a_failover(
    pair: Pair, dsn: str
) -> None:
    await pair.begin()
    plugins = [
        RedisPlugin(url=pair.url, timeout_s=1.0, connect_timeout_s=0.5, replicas=1),
        Leadership(lease_s=1.0),
        Recovery(sweep_s=0.2),
    ]
    async with Chancy(dsn, queues=[QUEUE], plugins=plugins, no_default_plugins=True) as chancy:
        await chancy.migrate()
        told: dict[int, Reference[object]] = {}

        async def push_for_ever() -> None:
            with suppress(BrokerUnavailable):
                while True:
                    number = len(told)
                    job = jobs.note.job(value=number).with_queue("far")
                    told[number] = await chancy.push(job)

        async with Worker(chancy, heartbeat_s=0.2, heartbeat_timeout_s=2.0):
            pushing = asyncio.create_task(push_for_ever())
            await eventually(lambda: len(told) > 300, timeout=30)
            pair.between.black_hole()
            pair.fail_over()
            await asyncio.wait([pushing], timeout=10)
            assert pushing.done()
            # Those that had ended where nobody had heard of it run again.
            for number, reference in told.items():
                assert await reference.result(30) == number

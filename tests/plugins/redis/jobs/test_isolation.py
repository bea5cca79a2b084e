"""An unreadable job, or a loop that raises, stops nothing else in an application."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from chancy import Chancy, Job, Queue, State
from chancy.broker.contract import Broker
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisBroker, RedisPlugin
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.plugins.retry import Retries
from chancy.routing.router import RoutedBroker
from chancy.testing.conformance.bench import record
from chancy.worker.worker import Worker
from tests.support import jobs
from tests.support.waiting import eventually

QUEUES = [
    Queue(name="near", executor="async"),
    Queue(name="far", executor="async", broker="redis"),
]
LETTERS = DeadLetters(sweep_s=0.1)


@pytest.fixture
async def chancy(dsn: str, redis_url: str) -> AsyncIterator[Chancy]:
    plugins = [RedisPlugin(url=redis_url), LETTERS, Recovery(sweep_s=0.1), Retries()]
    async with Chancy(
        dsn, queues=QUEUES, plugins=plugins, no_default_plugins=True, pool_size=4
    ) as made:
        yield made


@pytest.fixture
async def redis(chancy: Chancy) -> RedisBroker:
    assert isinstance(chancy.broker, RoutedBroker)
    found = await chancy.broker.brokers.ready("redis")
    assert isinstance(found, RedisBroker)
    return found


def note(queue: str) -> Job[object]:
    return jobs.note.job(value=queue).with_queue(queue)


def key_of(redis: RedisBroker, id: UUID) -> bytes:
    return f"{redis.tag}:j:".encode() + id.bytes


async def orphan(broker: Broker, queue: Queue) -> None:
    """Let a worker that ends at once claim the jobs of a queue."""
    dead = record(uuid.uuid4())
    await broker.declare(queue, upsert=True)
    await broker.register(dead)
    assert await broker.claim(queue.name, worker_id=dead.id, limit=10)
    await broker.unregister(dead.id)


async def test_jobs_of_both_brokers_are_rescued_beside_unreadable_ones(
    chancy: Chancy, redis: RedisBroker
) -> None:
    near, far = await chancy.push(note("near")), await chancy.push(note("far"))
    spoilt = [await chancy.push(note("far")) for _ in range(3)]
    await orphan(chancy.control, QUEUES[0])
    await orphan(redis, QUEUES[1])
    first, second, third = [key_of(redis, job.id) for job in spoilt]
    await redis.client.command("SET", first, "not a record")
    await redis.client.command("DEL", second)
    await redis.client.command("SADD", second, "a set")
    await redis.client.command("SETRANGE", third, 0, b"\x07")
    async with Worker(chancy, heartbeat_s=0.2, heartbeat_timeout_s=1.0):
        for job in (near, far):
            assert (await job.wait(20)).state is State.SUCCEEDED


async def test_a_job_that_cannot_be_decoded_becomes_a_dead_letter(
    chancy: Chancy, redis: RedisBroker
) -> None:
    await redis.declare(QUEUES[1], upsert=True)
    bad, good = await chancy.push(note("far")), await chancy.push(note("far"))
    key = key_of(redis, bad.id)
    stored: bytes = await redis.client.command("GET", key)
    await redis.client.command("SET", key, stored.replace(b'"far"', b'"f\xffr"'))
    async with Worker(chancy):
        assert (await good.wait(10)).state is State.SUCCEEDED
        assert (await bad.wait(10)).state is State.FAILED

        async def filed() -> bool:
            return await LETTERS.count(chancy) == 1

        await eventually(filed)
    letter = await LETTERS.get(chancy, bad.id)
    assert letter is not None
    assert (letter.error, letter.func) == ("chancy.Unreadable", jobs.note.job(value=0).func)
    assert "cannot be decoded" in letter.errors[-1]["message"]


async def test_a_loop_that_raises_does_not_end_the_others(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(upkeep: Upkeep) -> int:
        raise ValueError("a record of its own")

    monkeypatch.setattr(Upkeep, "turn", fail)
    async with Worker(chancy):
        await eventually(lambda: caplog.text.count("redis_loop_failed name=upkeep") > 1)
        failed = await chancy.push(jobs.fail.job().with_queue("far").with_max_attempts(1))

        async def filed() -> bool:
            return await LETTERS.get(chancy, failed.id) is not None

        await eventually(filed)
    assert "worker_loop_failed" not in caplog.text

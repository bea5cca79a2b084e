"""An application and a worker whose queue has its jobs in Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest

from chancy import Chancy, Job, Queue, State
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisBroker, RedisPlugin
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.routing.router import RoutedSqlBroker
from chancy.testing.conformance.bench import Bench, prepared, record, settlement
from chancy.testing.conformance.claiming import set_aside
from chancy.worker.surveyor import Surveyor
from chancy.worker.worker import Worker
from tests.integration.test_unknown_functions import OTHER, without
from tests.plugins.redis.relay.moving import plane
from tests.support import jobs
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually, is_in

FAST = Queue(name="fast", executor="async", broker="redis")
NEAR = Queue(name="near", executor="async")


@pytest.fixture
async def chancy(dsn: str, redis_url: str) -> AsyncIterator[Chancy]:
    plugins = [RedisPlugin(url=redis_url), Recovery(sweep_s=0.2)]
    async with Chancy(dsn, queues=[FAST, NEAR], plugins=plugins, pool_size=3) as made:
        yield made


def note(value: object = 0, queue: str = "fast") -> Job[object]:
    return jobs.note.job(value=value).with_queue(queue)


@pytest.mark.row("F30", "F33", "F42")
async def test_the_jobs_of_a_worker_that_is_gone_are_run_by_another(chancy: Chancy) -> None:
    broker = await plane(chancy)
    reference = await chancy.push(note(7))
    gone = record()
    await broker.register(gone)
    [claim] = await broker.claim("fast", worker_id=gone.id, limit=1)
    # Its last heartbeat was long ago.
    await broker.client.command("ZADD", f"{broker.tag}:beats", 1, gone.id.bytes)
    async with Worker(chancy):
        done = await reference.wait(30)
    assert (done.state, done.result, done.crashes) == (State.SUCCEEDED, 7, 1)
    # What the one before says now is too late.
    late = settlement(claim, State.FAILED)
    assert await broker.settle([late]) == {claim.id}


@pytest.mark.row("F37")
async def test_an_outage_of_redis_leaves_other_queues_going(
    dsn: str, own_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_redis(appendonly="yes")
    monkeypatch.setattr("chancy.plugins.redis.jobs.push.PATIENCE_S", 60.0)
    plugins = [RedisPlugin(url=server.url)]
    async with (
        Chancy(dsn, queues=[FAST, NEAR], plugins=plugins, pool_size=3) as chancy,
        Worker(chancy),
    ):
        assert await (await chancy.push(note(1))).result(30) == 1
        server.kill()
        assert await (await chancy.push(note(2, "near"))).result(30) == 2
        pushing = asyncio.create_task(chancy.push(note(3)))
        await asyncio.to_thread(server.start)
        assert await (await pushing).result(30) == 3


@pytest.mark.row("F37")
async def test_a_worker_continues_after_all_was_flushed(
    chancy: Chancy, redis_server: RedisServer
) -> None:
    """Under a new id, since Redis knows it no longer; what it ran is stale."""
    async with Worker(chancy, heartbeat_s=0.1):
        assert await (await chancy.push(note(1))).result(30) == 1
        running = await chancy.push(jobs.wait_for_ever.job().with_queue("fast"))
        await eventually(lambda: is_in(running, State.RUNNING))
        redis_server.flush()
        assert await (await chancy.push(note(2))).result(30) == 2
        assert await (await chancy.push(note(3).with_delay(timedelta(seconds=0.1)))).result(30) == 3


async def test_a_pause_is_heeded_at_once(chancy: Chancy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker hears of it from Postgres, which has the row of the queue."""
    # No survey finds it.
    monkeypatch.setattr(Surveyor, "_pause_s", lambda *_: 3_600.0)
    async with Worker(chancy) as worker:
        assert await (await chancy.push(note(1))).result(30) == 1
        await eventually(lambda: worker.listening)
        assert await chancy.pause_queue("fast")

        async def stays() -> bool:
            reference = await chancy.push(note(2))
            await asyncio.sleep(0.1)
            return await reference.status() is State.PENDING

        await eventually(stays)
        assert await chancy.resume_queue("fast")

        async def emptied() -> bool:
            return "fast" not in await chancy.counts()

        await eventually(emptied)


async def test_a_loop_that_raises_does_not_end_the_others(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(upkeep: Upkeep) -> int:
        raise ValueError("a record of its own")

    monkeypatch.setattr(Upkeep, "turn", fail)
    async with Worker(chancy):
        await eventually(lambda: caplog.text.count("redis_loop_failed name=upkeep") > 1)
        failed = await chancy.push(jobs.fail.job().with_queue("fast").with_max_attempts(1))

        async def archived() -> bool:
            return failed.id in await chancy.control.get([failed.id])

        await eventually(archived)
    assert "worker_loop_failed" not in caplog.text


async def test_a_job_cannot_end_itself_in_a_transaction(chancy: Chancy) -> None:
    """Postgres does not have its row: that is said, instead of a lost lease."""
    async with Worker(chancy):
        done = await (await chancy.push(jobs.complete.job().with_queue("fast"))).wait(30)
    assert done.state is State.FAILED
    assert "complete_in() needs a job that is stored in Postgres" in done.errors[0]["message"]


async def test_a_worker_that_starts_while_redis_is_unavailable_reports_it(
    dsn: str,
    own_redis: Callable[..., RedisServer],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("chancy.worker.worker._QUEUES_EVERY_S", 0.5)
    server = own_redis()
    server.stop()
    plugins = [RedisPlugin(url=server.url)]
    async with (
        Chancy(dsn, queues=[FAST, NEAR], plugins=plugins) as chancy,
        Worker(chancy) as worker,
    ):
        await eventually(lambda: "queue_broken queue=fast" in caplog.text)
        assert "is not open" not in caplog.text
        failed = [one for one in caplog.records if "queue_failed" in one.getMessage()]
        assert "Redis is unavailable: " in failed[0].getMessage()
        assert all(one.exc_info is None for one in failed), "a trace that says nothing more"
        await asyncio.to_thread(server.start)
        await eventually(lambda: "fast" in worker.queues)
        assert await (await chancy.push(note(1))).result(30) == 1


CROWD = 50


def test_an_application_lives_in_one_event_loop_after_the_other(
    dsn: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    queues = [
        Queue(name="async", executor="async", concurrency=CROWD),
        Queue(name="there", executor="async", concurrency=CROWD, broker="redis"),
    ]
    # Few connections, so that callers wait for them.
    chancy = Chancy(
        dsn,
        queues=queues,
        plugins=[RedisPlugin(url=redis_url, max_connections=2)],
        pool_size=2,
    )

    async def crowd() -> None:
        assert isinstance(chancy.broker, RoutedSqlBroker)
        await asyncio.gather(*(chancy.broker.open() for _ in range(3)))
        async with chancy:
            there = await chancy.broker.brokers.ready("redis")
            for heard in await asyncio.gather(*(there.subscribe() for _ in range(3))):
                await heard.close()
        async with chancy, Worker(chancy):
            for queue in queues:
                pushed = [jobs.note.job(number).with_queue(queue.name) for number in range(CROWD)]
                references = await asyncio.gather(*map(chancy.push, pushed))
                ended = (reference.result(timeout_s=20) for reference in references)
                assert await asyncio.gather(*ended) == list(range(CROWD))
            await asyncio.gather(*(chancy.broker.counts() for _ in range(CROWD)))

    for _ in range(2):
        asyncio.run(crowd())
    assert not [record for record in caplog.records if record.exc_info]


SHARED = Queue(name="shared", executor="async", broker="redis", concurrency=4, poll_interval_s=0.1)


@pytest.fixture
def applications(dsn: str, redis_url: str) -> tuple[Chancy, Chancy]:
    """An old application, which lacks a function, and a new one."""
    old, new = (
        Chancy(dsn, queues=[SHARED], plugins=[RedisPlugin(url=redis_url)], pool_size=3)
        for _ in range(2)
    )
    return without(old, OTHER), new


async def test_jobs_that_stay_in_postgres_run_once_a_worker_knows_them(
    applications: tuple[Chancy, Chancy],
) -> None:
    old, new = applications
    async with old, new:
        # A step of a workflow is not moved to Redis.
        await old.control.declare(SHARED)
        sql = (
            "insert into chancy.jobs (id, pos, state, queue, func, arguments, meta) values "
            "(gen_random_uuid(), 1, 0, 'shared', $1, '{\"n\": 1}', '{\"workflow\": {}}') "
            "returning id"
        )
        async with Worker(old):
            async with old.transaction() as tx:
                ((id,),) = await tx.fetch(sql, OTHER)

            async def is_set_aside() -> bool:
                found = await old.control.get([id])
                return found[id].state is State.HELD

            await eventually(is_set_aside)
            async with Worker(new):
                assert (await new.wait_for(id, 20)).state is State.SUCCEEDED


async def test_a_cancelled_job_leaves_the_list_of_its_function(
    broker: RedisBroker, bench: Bench
) -> None:
    gone, kept = await bench.running(prepared(), prepared())
    await bench.settle(set_aside(gone), set_aside(kept))
    name = f"{broker.tag}:aside:{len(gone.queue)}:{gone.queue}{gone.func}"
    assert await broker.client.command("ZCARD", name) == 2
    await broker.cancel([gone.id])
    assert await broker.client.command("ZRANGE", name, 0, -1) == [kept.id.bytes]
    await broker.cancel([kept.id])
    assert await broker.client.command("KEYS", f"{broker.tag}:aside*") == []

"""Rules of queues in Redis, kept by several workers, on one server and on a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import UUID

import pytest

from chancy import (
    Chancy,
    ConfigurationError,
    FairShare,
    GlobalConcurrency,
    Queue,
    RateLimit,
    Sequential,
    State,
    Worker,
)
from chancy.app.diagnosis import Why
from chancy.attempt.settlement import Settlement
from chancy.broker.values import WorkerRecord
from chancy.job.ids import new_id
from chancy.plugins.recovery import Recovery
from chancy.plugins.redis import RedisBroker, RedisPlugin
from chancy.queue.rules import Rule
from tests.plugins.limits import jobs
from tests.plugins.limits.jobs import Book, work
from tests.plugins.redis.relay.moving import plane
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

#: Longer than a test takes: what starts a job is a settlement or a timer, not a poll.
POLL_S = 120.0
Application = Callable[..., Chancy]


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    book = Book()
    monkeypatch.setattr(jobs, "BOOK", book)
    return book


@pytest.fixture(params=["server", pytest.param("cluster", marks=pytest.mark.chaos)])
def application(request: pytest.FixtureRequest, dsn: str) -> Application:
    clustered = request.param == "cluster"
    url = request.getfixturevalue("redis_cluster" if clustered else "redis_url")

    def make(*rules: Rule) -> Chancy:
        plugins = [RedisPlugin(url=url, cluster=clustered), Recovery(sweep_s=0.2)]
        return Chancy(dsn, queues=[queue(*rules)], plugins=plugins, pool_size=2)

    return make


def queue(*rules: Rule) -> Queue:
    return Queue(
        "ruled", executor="async", broker="redis", concurrency=20, poll_interval_s=POLL_S,
        rules=rules,
    )  # fmt: skip


@asynccontextmanager
async def workers(application: Application, *rules: Rule) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(3):
            app = await stack.enter_async_context(application(*rules))
            await stack.enter_async_context(Worker(app, heartbeat_s=0.2))
        yield


async def claiming(chancy: Chancy, rule: Rule) -> tuple[RedisBroker, UUID]:
    """The broker with the declared queue, and a registered worker without heartbeats."""
    redis = await plane(chancy)
    await redis.declare(queue(rule), upsert=True)  # as each worker does
    worker = WorkerRecord(
        id=new_id(), host="gone", pid=1, tags=frozenset(), queues=("ruled",), version="0"
    )
    await redis.register(worker)
    return redis, worker.id


async def test_no_more_jobs_run_than_the_rule_allows(application: Application, book: Book) -> None:
    rule = GlobalConcurrency(3)
    async with application(rule) as chancy:
        # A worker that died with all slots: they are free once its jobs are rescued.
        await chancy.push_many(work.job(tenant="acme", number=number) for number in range(60))
        redis, dead = await claiming(chancy, rule)
        assert len(await redis.claim("ruled", worker_id=dead, limit=20)) == 3
        assert await redis.claim("ruled", worker_id=dead, limit=20) == []
        # Its last heartbeat was long ago.
        await redis.client.command("ZADD", f"{redis.tag}:beats", 1, dead.bytes)
        async with workers(application, rule):
            await eventually(lambda: len(book.starts) >= 60, timeout=60.0)
    assert book.most[""] == 3


async def test_the_rules_hold_after_redis_has_lost_its_data(
    dsn: str, redis_url: str, redis_server: RedisServer, book: Book
) -> None:
    declared = queue(GlobalConcurrency(1))
    async with (
        Chancy(dsn, queues=[declared], plugins=[RedisPlugin(url=redis_url)], pool_size=2) as chancy,
        Worker(chancy, heartbeat_s=0.1),
    ):
        await (await chancy.push(work.job(tenant="a", number=0))).wait(30)
        redis_server.flush()
        references = await chancy.push_many(work.job(tenant="a", number=n) for n in range(10))
        for reference in references:
            await reference.wait(30)
    assert book.most[""] == 1


async def test_starts_keep_the_rate_in_every_window(application: Application, book: Book) -> None:
    allowed, burst = 100, 5
    rule = RateLimit(allowed, per=1.0, burst=burst)
    async with application(rule) as chancy:
        references = await chancy.push_many(work.job(tenant="a", number=n) for n in range(60))
        async with workers(application, rule):
            done = [await reference.wait(60) for reference in references]
    at = sorted(job.claimed_at.timestamp() for job in done if job.claimed_at)
    assert len(at) == 60
    for first in range(60):
        for last in range(first, 60):
            assert last - first + 1 <= burst + allowed * (at[last] - at[first]) + 1e-3


async def test_a_burst_waits_for_tokens_without_claims_and_not_while_the_queue_is_paused(
    application: Application, book: Book
) -> None:
    async with application(RateLimit(1, per=3_600.0)) as chancy:
        first, _ = await chancy.push_many([work.job("a", n) for n in range(2)])
        async with Worker(chancy, burst=True) as worker:
            ending = asyncio.create_task(worker.wait_for_shutdown())
            await first.wait(30)
            ruled = worker._queue_set._serving["ruled"]
            pullers = ruled._pullers.values()
            await eventually(lambda: all(puller.drained.is_set() for puller in pullers))
            assert not ending.done(), "a job waits for its token"
            await eventually(lambda: not ruled.puller._woken.is_set())
            worker._queue_set.confirm_drained()
            assert not ruled.puller._woken.is_set(), "the next claim is at a known time"
            await chancy.pause_queue("ruled")
            await asyncio.wait_for(ending, 30)


async def test_a_job_that_raised_rate_limited_pauses_the_queue(application: Application) -> None:
    rule = RateLimit(1_000)
    async with application(rule) as chancy:
        await chancy.push_many(work.job(tenant="a", number=number) for number in range(3))
        redis, worker_id = await claiming(chancy, rule)
        first, second = await redis.claim("ruled", worker_id=worker_id, limit=2)
        later = Settlement(first.id, first.lease, State.SCHEDULED, delay_s=3_600.0, refund=True)
        await redis.settle([later._replace(meta='{"snoozes": 1}')])
        assert await redis.next_s("ruled") is None
        await redis.settle(
            [later._replace(id=second.id, lease=second.lease, meta='{"rate_limited": 1}')]
        )
        assert await redis.claim("ruled", worker_id=worker_id, limit=1) == []
        assert 3_500 < (await redis.next_s("ruled") or 0.0) <= 3_600


async def test_a_changed_rate_adds_no_tokens(application: Application) -> None:
    old, new = RateLimit(1, per=3_600.0), RateLimit(1_000, burst=50)
    async with application(old) as chancy:
        await chancy.push_many(work.job(tenant="a", number=number) for number in range(60))
        redis, worker_id = await claiming(chancy, old)
        assert len(await redis.claim("ruled", worker_id=worker_id, limit=60)) == 1
        # An hour at the old rate makes one token; at the new one, 50 in 50 ms.
        bucket = f"{redis.tag}:buckets"
        tokens, at, paused = (await redis.client.command("HGET", bucket, "ruled")).split()
        long_ago = b"%b %.6f %b" % (tokens, float(at) - 3_600.0, paused)
        await redis.client.command("HSET", bucket, "ruled", long_ago)
        await redis.declare(queue(new), upsert=True)
        tokens, *_ = (await redis.client.command("HGET", bucket, "ruled")).split()
        assert 1.0 <= float(tokens) <= 1.001


async def held_by(chancy: Chancy, id: UUID) -> list[str]:
    return [text for why, text in await chancy.why(id) if why is Why.HELD]


async def test_rules_explain_why_a_job_waits(application: Application) -> None:
    slots = GlobalConcurrency(1)
    async with application(slots) as chancy:
        first, second = await chancy.push_many(work.job(tenant="a", number=n) for n in range(2))
        await chancy.broker.declare(queue(slots), upsert=True)
        redis, worker_id = await claiming(chancy, slots)
        assert await held_by(chancy, second.id) == []
        [running] = await redis.claim("ruled", worker_id=worker_id, limit=20)
        assert running.id == first.id
        assert await held_by(chancy, second.id) == [f"held by {slots}: the jobs {first.id} run"]
        assert await held_by(chancy, first.id) == []
        rate = RateLimit(1, per=3_600.0)
        await chancy.broker.declare(queue(rate), upsert=True)
        redis, worker_id = await claiming(chancy, rate)
        assert len(await redis.claim("ruled", worker_id=worker_id, limit=20)) == 1
        third = await chancy.push(work.job(tenant="a", number=2))
        [text] = await held_by(chancy, third.id)
        assert text.startswith("held by RateLimit(allowed=1, per=3600.0, ")
        assert text.partition(": ")[2].startswith("its next token is there, or a pause ends, in 3")


async def test_rules_change_while_workers_run(application: Application, book: Book) -> None:
    book.gate.clear()
    rule = GlobalConcurrency(1)
    async with application(rule) as chancy, workers(application, rule):
        await chancy.push_many(work.job(tenant="a", number=number) for number in range(9))
        await eventually(lambda: book.running[""] == 1)
        await chancy.declare(queue(GlobalConcurrency(4)), upsert=True)
        await eventually(lambda: book.running[""] == 4)
        await chancy.declare(queue(), upsert=True)
        await eventually(lambda: book.running[""] == 9)
        book.gate.set()
        await eventually(lambda: book.running[""] == 0)


@pytest.mark.parametrize(
    "rule", [FairShare("tenant"), Sequential("tenant"), GlobalConcurrency(1, by="tenant")]
)
async def test_rules_that_redis_cannot_enforce_are_refused(
    dsn: str, redis_url: str, rule: Rule
) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot enforce {type(rule).__name__}"):
        Chancy(dsn, queues=[queue(rule)], plugins=[RedisPlugin(url=redis_url)])

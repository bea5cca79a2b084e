"""Jobs of Redis queues that are pushed inside transactions of Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from chancy import Chancy, Job, Queue, State, Unique
from chancy.broker.optional import SqlStore
from chancy.broker.values import Capability
from chancy.clock import SystemClock
from chancy.errors import BrokerUnavailable, PushError
from chancy.plugin.leader import Unelected
from chancy.plugins.redis import RedisBroker, RedisPlugin
from chancy.plugins.redis.relay import job_relay as relay
from chancy.plugins.redis.relay.job_relay import JobRelay
from chancy.plugins.redis.relay.outbox import JobOutboxReader, JobOutboxRow
from chancy.routing.router import RoutedBroker
from chancy.worker.worker import Worker
from tests.support import jobs
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

FAST = Queue(name="fast", executor="async", broker="redis")


@asynccontextmanager
async def application(dsn: str, url: str) -> AsyncGenerator[Chancy]:
    plugins = [RedisPlugin(url=url, timeout_s=0.5, connect_timeout_s=0.5)]
    async with Chancy(dsn, queues=[FAST], plugins=plugins, pool_size=3) as chancy:
        await chancy.migrate()
        await chancy.declare(FAST)
        yield chancy


@pytest.fixture
async def chancy(dsn: str, redis_url: str) -> AsyncGenerator[Chancy]:
    async with application(dsn, redis_url) as made:
        yield made


@pytest.fixture(autouse=True)
def none_noted() -> None:
    jobs.noted.clear()


def note(value: object) -> Job[object]:
    return jobs.note.job(value=value).with_queue("fast")


def store(chancy: Chancy) -> SqlStore:
    assert isinstance(chancy.broker, SqlStore)
    return chancy.broker


async def plane(chancy: Chancy) -> RedisBroker:
    assert isinstance(chancy.broker, RoutedBroker)
    found = await chancy.broker.brokers.ready("redis")
    assert isinstance(found, RedisBroker)
    return found


async def waiting(chancy: Chancy) -> list[UUID]:
    rows = await store(chancy).fetch("select id from chancy.redis_outbox order by pos")
    return [row[0] for row in rows]


async def relay_of(chancy: Chancy) -> JobRelay:
    class Beside:
        broker, clock, leader = chancy.broker, SystemClock(), Unelected()

    runtime: Any = Beside()
    return JobRelay((await plane(chancy)).client, store(chancy), runtime)


async def until_empty(chancy: Chancy) -> None:
    async def empty() -> bool:
        return not await waiting(chancy)

    await eventually(empty)


async def test_a_rollback_leaves_nothing(chancy: Chancy) -> None:
    async def undone() -> None:
        async with chancy.transaction() as tx:
            await chancy.push(note(1), within=tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await undone()
    assert await waiting(chancy) == []
    async with Worker(chancy):
        assert await (await chancy.push(note(2))).result(10) == 2
    assert jobs.noted == [2]


async def test_jobs_run_once_it_commits_and_not_before(chancy: Chancy) -> None:
    async with Worker(chancy):
        async with chancy.transaction() as tx:
            first = await chancy.push(note(1), within=tx)
            more = await chancy.push_many([note(n) for n in range(2, 700)], within=tx)
            assert await chancy.get_job(first.id) is None
        assert await first.result(10) == 1
        for reference in more:
            assert (await reference.wait(10)).state is State.SUCCEEDED
        await until_empty(chancy)
    assert sorted(map(int, map(str, jobs.noted))) == list(range(1, 700))
    broker = await plane(chancy)
    assert await broker.client.command("ZCARD", f"{broker.tag}:relayed") == 0


@asynccontextmanager
async def _asyncpg(dsn: str) -> AsyncGenerator[Any]:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _psycopg(dsn: str) -> AsyncGenerator[Any]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.cursor() as it:
        yield it


@asynccontextmanager
async def _sqlalchemy(dsn: str) -> AsyncGenerator[Any]:
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(engine) as session, session.begin():
        yield session
    await engine.dispose()


@pytest.mark.parametrize("begin", [_asyncpg, _psycopg, _sqlalchemy])
async def test_all_that_the_core_takes_is_taken(
    chancy: Chancy, dsn: str, begin: Callable[[str], Any]
) -> None:
    job = note({"a": [1.5, "ü"]}).with_priority(7).with_max_attempts(4).with_meta(k="v")
    async with begin(dsn) as tx:
        reference = await chancy.push(job, within=tx)
        later = await chancy.push(note(0).with_run_at(timedelta(hours=1)), within=tx)
    assert await (await relay_of(chancy)).turn() == 2
    found = await (await plane(chancy)).get([reference.id, later.id])
    stored = found[reference.id]
    assert (stored.arguments, stored.priority) == ({"value": {"a": [1.5, "ü"]}}, 7)
    assert (stored.max_attempts, stored.meta, stored.state) == (4, {"k": "v"}, State.PENDING)
    due = found[later.id].run_at
    assert due is not None
    assert abs(due - stored.pushed_at - timedelta(hours=1)).seconds < 5


async def test_threads_push_inside_their_transactions(chancy: Chancy, dsn: str) -> None:
    def push() -> UUID:
        with (
            Chancy(dsn, queues=[FAST], plugins=redis_of(chancy)) as mine,
            psycopg.connect(dsn) as connection,
        ):
            return mine.sync_push(note(3), within=connection).id

    id = await asyncio.to_thread(push)
    assert await waiting(chancy) == [id]
    async with Worker(chancy):
        assert (await chancy.wait_for(id, 10)).result == 3


def redis_of(chancy: Chancy) -> Sequence[RedisPlugin]:
    return [one for one in chancy.hooks.plugins if isinstance(one, RedisPlugin)]


@pytest.mark.chaos
async def test_a_relay_that_died_after_its_push_repeats_nothing(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "LEASE_S", 0.3)

    async def die(_: JobOutboxReader, taken: Sequence[JobOutboxRow]) -> None:
        raise BrokerUnavailable("killed")

    async with chancy.transaction() as tx:
        reference = await chancy.push(note(1), within=tx)
    with monkeypatch.context() as patch:
        patch.setattr(JobOutboxReader, "delete", die)
        with pytest.raises(BrokerUnavailable, match="killed"):
            await (await relay_of(chancy)).turn()
        async with Worker(chancy):
            assert await reference.result(10) == 1
            # Others push it again and again, now that it has finished.
            found = await store(chancy).fetch("select taken_until from chancy.redis_outbox")

            async def taken_again() -> bool:
                now = await store(chancy).fetch("select taken_until from chancy.redis_outbox")
                return now != found

            await eventually(taken_again)
            # Not even where nothing is known of the job any more.
            broker = await plane(chancy)
            key = broker.tag.encode() + b":j:" + reference.id.bytes
            assert await broker.client.command("DEL", key) == 1
    async with Worker(chancy):
        await until_empty(chancy)
        assert await (await chancy.push(note(2))).result(10) == 2
    assert jobs.noted == [1, 2]


async def test_a_relay_that_was_frozen_comes_too_late(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with chancy.transaction() as tx:
        reference = await chancy.push(note(1), within=tx)
    take = JobOutboxReader.take

    async def freeze(outbox: JobOutboxReader, limit: int, lease_s: float) -> list[JobOutboxRow]:
        taken = await take(outbox, limit, 0.0)
        await asyncio.sleep(0.2)
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(relay, "LEASE_S", 0.1)
        patch.setattr(JobOutboxReader, "take", freeze)
        assert await (await relay_of(chancy)).turn() == 1
    assert "redis_relay_late jobs=1" in caplog.text
    assert await (await plane(chancy)).get([reference.id]) == {}
    assert await waiting(chancy) == [reference.id]
    assert await (await relay_of(chancy)).turn() == 1
    assert reference.id in await (await plane(chancy)).get([reference.id])
    assert await waiting(chancy) == []


@pytest.mark.chaos
async def test_redis_may_be_away_at_the_commit(
    dsn: str, own_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = own_redis(appendonly="yes")
    async with application(dsn, server.url) as chancy, Worker(chancy):
        assert await (await chancy.push(note(1))).result(10) == 1
        server.kill()
        async with chancy.transaction() as tx:
            reference = await chancy.push(note(2), within=tx)
        await eventually(lambda: "redis_relay_postponed" in caplog.text)
        await asyncio.to_thread(server.start)
        assert await reference.result(20) == 2
        await until_empty(chancy)


async def test_a_unique_key_is_looked_at_on_arrival(
    chancy: Chancy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    held = await chancy.push(note(1).with_unique(Unique(key="once")))
    async with chancy.transaction() as tx:
        skipped = await chancy.push(note(2).with_unique(Unique(key="once")), within=tx)
        rule = Unique(key="once", on_conflict="raise")
        with pytest.raises(PushError, match="on_conflict='raise'"):
            await chancy.push(note(3).with_unique(rule), within=tx)
    assert await (await relay_of(chancy)).turn() == 1
    assert f"redis_relay_skipped job={skipped.id} holder={held.id}" in caplog.text
    assert await waiting(chancy) == []


async def test_what_redis_refuses_stands_alone(
    chancy: Chancy, caplog: pytest.LogCaptureFixture
) -> None:
    async with chancy.transaction() as tx:
        good = await chancy.push_many([note(n) for n in range(9)], within=tx)
    ids = [one.id for one in good]
    bad = ids[4]
    broker = await plane(chancy)
    # A key of another type is there: its script fails.
    await broker.client.command("SET", f"{broker.tag}:u", "")
    sql = "update chancy.redis_outbox set rule = $1::text::jsonb where id = $2"
    rule = '{"key": "00", "on_conflict": "skip"}'
    await store(chancy).fetch(sql, rule, bad)
    await (await relay_of(chancy)).turn()
    assert f"redis_relay_refused job={bad}" in caplog.text
    assert await waiting(chancy) == [bad]
    ((problem,),) = await store(chancy).fetch("select problem from chancy.redis_outbox")
    assert "WRONGTYPE" in problem
    await broker.client.command("DEL", f"{broker.tag}:u")
    await store(chancy).fetch("update chancy.redis_outbox set taken_until = null")
    await (await relay_of(chancy)).turn()
    assert set(await broker.get(ids)) == set(ids)


def test_it_is_offered_where_there_is_a_table_alone() -> None:
    settings = RedisPlugin().settings
    assert Capability.TRANSACTIONAL_PUSH in RedisBroker(settings, outbox="chancy").capabilities
    assert Capability.TRANSACTIONAL_PUSH not in RedisBroker(settings).capabilities

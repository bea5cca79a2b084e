"""Finished jobs of Redis queues in the history and among the dead letters of Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from uuid import UUID

import pytest

from chancy import Chancy, Job, JobFilter, Queue, State
from chancy.attempt.settlement import Settlement
from chancy.broker.optional import SqlStore
from chancy.clock import SystemClock
from chancy.errors import StatementFailed
from chancy.plugin.leader import Unelected
from chancy.plugins.dead_letter import DeadLetters
from chancy.plugins.redis import RedisBroker, RedisPlugin
from chancy.plugins.redis.relay.archive import Archive
from chancy.plugins.retry import Retries
from chancy.testing.conformance.bench import record
from chancy.worker.worker import Worker
from tests.plugins.redis.relay.moving import plane
from tests.support import jobs
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually, gives

QUEUES = [
    Queue(name="some", executor="async", broker="redis"),
    Queue(name="every", executor="async", broker="redis", broker_options={"history": "all"}),
    Queue(name="nothing", executor="async", broker="redis", broker_options={"history": "none"}),
]
LETTERS = DeadLetters(sweep_s=0.1)


@asynccontextmanager
async def application(dsn: str, url: str) -> AsyncGenerator[Chancy]:
    plugins = [RedisPlugin(url=url), LETTERS, Retries()]
    async with Chancy(
        dsn, queues=QUEUES, plugins=plugins, no_default_plugins=True, pool_size=4
    ) as chancy:
        yield chancy


@pytest.fixture
async def chancy(dsn: str, redis_url: str) -> AsyncGenerator[Chancy]:
    async with application(dsn, redis_url) as made:
        yield made


def fail(queue: str, message: str = "no") -> Job[Any]:
    return jobs.fail.job(message=message).with_queue(queue).with_max_attempts(1)


async def archive_of(chancy: Chancy) -> Archive:
    assert isinstance(chancy.broker, SqlStore)
    return Archive((await plane(chancy)).client, chancy.broker)


async def finished(chancy: Chancy, id: UUID) -> int:
    assert isinstance(chancy.broker, SqlStore)
    sql = "select count(*) from chancy.finished_jobs where id = $1"
    ((count,),) = await chancy.broker.fetch(sql, id)
    return int(count)


async def test_the_history_has_what_each_queue_wants(chancy: Chancy) -> None:
    value = {"a": [1.5, "ü\\", 2**70], "b": None}
    note = jobs.note.job(value=value)
    async with Worker(chancy):
        ran = {queue.name: await chancy.push(note.with_queue(queue.name)) for queue in QUEUES}
        failed = {queue.name: await chancy.push(fail(queue.name)) for queue in QUEUES}
        for reference in (*ran.values(), *failed.values()):
            await reference.wait(10)

        async def archived() -> bool:
            wanted = (ran["every"], failed["every"], failed["some"])
            return all([await finished(chancy, one.id) == 1 for one in wanted])

        await eventually(archived)
        broker = await plane(chancy)
        # Removed after they were written.
        key = f"{broker.tag}:archive"
        await eventually(lambda: gives(broker.client.command("EXISTS", key), 0))
    assert [await finished(chancy, ran[name].id) for name in ("some", "nothing")] == [0, 0]
    assert await finished(chancy, failed["nothing"].id) == 0
    # To the last field, as Redis has it.
    for one in (ran["every"], failed["some"]):
        assert (await chancy.control.get([one.id]))[one.id] == (await broker.get([one.id]))[one.id]
    found = await chancy.find_jobs(JobFilter(states=frozenset({State.FAILED})))
    assert sorted(one.queue for one in found) == ["every", "nothing", "some"]


async def test_a_repeated_write_is_stored_once(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = [await archive_of(chancy) for _ in range(2)]
    broker = await plane(chancy)
    plain = Worker(chancy)
    # A worker whose archive is not heard of.
    monkeypatch.setattr(Archive, "serve", lambda *_: asyncio.Event().wait())
    monkeypatch.setattr(RedisBroker, "archive", lambda *_: asyncio.sleep(0))
    async with plain:
        reference = await chancy.push(fail("some"))
        await reference.wait(10)
    key = f"{broker.tag}:archive"
    id, at = await broker.client.command("ZRANGE", key, 0, -1, "WITHSCORES")
    await asyncio.gather(*(one.turn() for one in archives))
    await broker.client.command("ZADD", key, at, id)
    assert await archives[0].turn() == 1
    assert await finished(chancy, reference.id) == 1
    assert await broker.client.command("EXISTS", key) == 0


async def test_dead_letters_are_filed_and_replayed(
    chancy: Chancy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "chancy.dead_letters")
    async with Worker(chancy):
        reference = await chancy.push(fail("some", "oh").with_meta(k="v"))
        await reference.wait(10)
        await eventually(lambda: gives(LETTERS.count(chancy), 1))

        def said() -> list[str]:
            return [one.message for one in caplog.records if one.name == "chancy.dead_letters"]

        await eventually(said)
        assert said() == ["dead_letters_filed count=1"], "which is how it should be: no warning"
        letter = await LETTERS.get(chancy, reference.id)
        assert letter is not None
        assert (letter.queue, letter.error) == ("some", "builtins.ValueError")
        assert [one["message"] for one in letter.errors] == ["oh"]
        again = await LETTERS.replay(chancy, reference.id)
        assert again is not None
        assert (await chancy.wait_for(again, 10)).state is State.FAILED
        replayed = (await (await plane(chancy)).get([again]))[again]
        told = {"replay_of": str(reference.id), "replays": 1}
        assert (replayed.attempt, replayed.max_attempts) == (1, 1)
        assert (replayed.meta["k"], replayed.meta["dead_letters"]) == ("v", told)
        await eventually(lambda: gives(LETTERS.count(chancy), 2))
        assert await LETTERS.purge(chancy, reference.id)
        assert not await LETTERS.purge(chancy, reference.id)


async def test_failures_in_redis_are_filed_on_demand(
    dsn: str, own_redis: Callable[..., RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = own_redis()
    async with application(dsn, server.url) as chancy:
        broker, worker = await plane(chancy), record()
        await broker.register(worker)
        reference = await chancy.push(fail("some"))
        [claim] = await broker.claim("some", worker_id=worker.id, limit=1)
        await broker.settle([Settlement(claim.id, claim.lease, State.FAILED)])
        assert await LETTERS.count(chancy) == 0
        assert await LETTERS.file_missing(chancy) == 1
        assert await LETTERS.get(chancy, reference.id) is not None
        server.kill()
        assert await LETTERS.file_missing(chancy) == 0
        assert "broker_unavailable broker=redis" in caplog.text


async def test_a_history_without_its_table_loses_no_job(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Archive, "serve", lambda *_: asyncio.Event().wait())
    monkeypatch.setattr(RedisBroker, "archive", lambda *_: asyncio.sleep(0))
    assert isinstance(chancy.broker, SqlStore)
    archive = await archive_of(chancy)
    async with Worker(chancy):
        failed = [await chancy.push(fail("some")) for _ in range(3)]
        for reference in failed:
            await reference.wait(10)
        await chancy.broker.fetch("alter table chancy.finished_jobs rename to away")
        with pytest.raises(StatementFailed, match="finished_jobs"):
            await archive.turn()
        await chancy.broker.fetch("alter table chancy.away rename to finished_jobs")
        assert await archive.turn() == 3
    assert [await finished(chancy, one.id) for one in failed] == [1, 1, 1]


class Asleep(Exception):
    """The archive has nothing to do."""


async def test_large_records_are_written_without_a_pause(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(SystemClock):
        async def sleep(self, seconds: float) -> None:
            raise Asleep

    class Beside:
        clock, leader = Clock(), Unelected()

    async def chosen(*about: object) -> None: ...

    monkeypatch.setattr("chancy.plugins.redis.relay.archive.elected", chosen)
    broker, worker, runtime = await plane(chancy), record(), cast("Any", Beside())
    await broker.register(worker)
    await broker.declare(QUEUES[1], upsert=True)
    await chancy.push_many([fail("every", "x" * 10_000) for _ in range(120)])
    claims = await broker.claim("every", worker_id=worker.id, limit=200)
    assert len(claims) == 120
    await broker.settle([Settlement(one.id, one.lease, State.SUCCEEDED) for one in claims])
    assert isinstance(chancy.broker, SqlStore)
    archive = Archive(broker.client, chancy.broker)
    with pytest.raises(Asleep):
        await archive.serve(runtime)
    sql = "select count(*) from chancy.finished_jobs where id = any($1)"
    [[count]] = await chancy.broker.fetch(sql, [one.id for one in claims])
    assert count == 120

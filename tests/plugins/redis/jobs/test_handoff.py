"""Jobs that a push gives to a worker that waits: run by nobody else, and lost with no message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from chancy.attempt.claim import Claim
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.plugins.redis.jobs.handoff import PATIENCE_S
from chancy.plugins.redis.transport.clients import command_sync
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.listening import Listening, woken
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually


def desk(client: redis.Redis, broker: RedisBroker) -> bytes:
    """The channel of the worker that waits."""
    [member] = command_sync(client, "ZRANGE", f"{broker.tag}:parked:default", 0, -1)
    name: bytes = member[16:]
    return broker.tag.encode() + b":desk:" + name


async def counted(bench: Bench) -> tuple[int, int]:
    counts = (await bench.broker.counts()).get("default")
    return (0, 0) if counts is None else (counts.pending, counts.running)


async def test_a_job_is_given_to_a_worker_that_waits(bench: Bench, listening: Listening) -> None:
    assert await bench.claim() == []
    job = prepared(arguments='{"a": "ü"}', meta='{"b": 1}', priority=7)
    await bench.push(job)
    assert await counted(bench) == (0, 1)
    await woken(listening)
    [claim] = await bench.claim()
    assert (claim.id, claim.worker_id, claim.attempt) == (job.id, bench.worker_id, 1)
    assert (claim.arguments, claim.meta, claim.priority) == ('{"a": "ü"}', '{"b": 1}', 7)
    assert (await bench.job(job.id)).worker_id == bench.worker_id
    assert await bench.claim() == []
    assert await bench.settle(settlement(claim, State.SUCCEEDED)) == frozenset()
    assert await counted(bench) == (0, 0)


async def test_who_does_not_listen_or_has_work_is_given_nothing(
    bench: Bench, listening: Listening, redis_server: RedisServer
) -> None:
    await bench.claim()
    await bench.push(prepared())
    await woken(listening)
    [claim] = await bench.claim()
    assert await bench.claim() == []
    # What waited behind a long job would be kept from those that are free.
    await bench.push(prepared())
    assert await counted(bench) == (1, 1)
    [other] = await bench.claim()
    await bench.settle(*(settlement(one, State.SUCCEEDED) for one in (claim, other)))
    assert await bench.claim() == []
    await listening.close()
    with closing(redis_server.client()) as client:
        await eventually(lambda: not command_sync(client, "CLIENT", "LIST", "TYPE", "PUBSUB"))
    await bench.push(prepared())
    assert await counted(bench) == (1, 0)


async def test_what_waits_longer_or_has_no_turn_yet_goes_its_way(
    bench: Bench, listening: Listening
) -> None:
    await bench.claim()
    first = prepared(priority=1)
    await bench.push(first, prepared())
    assert await counted(bench) == (2, 0)
    # Not before those that are there.
    await bench.push(prepared())
    assert await counted(bench) == (3, 0)
    assert [one.id for one in await bench.claim(1)] == [first.id]


async def test_a_paused_queue_gives_nothing(bench: Bench, listening: Listening) -> None:
    await bench.claim()
    await bench.broker.pause("default", resume_at=datetime.now(UTC) + timedelta(hours=1))
    await bench.push(prepared())
    assert await counted(bench) == (1, 0)
    assert await bench.claim() == []
    assert await bench.broker.resume("default")
    assert len(await bench.claim()) == 1


async def test_a_worker_that_is_gone_is_given_nothing(bench: Bench, listening: Listening) -> None:
    await bench.claim()
    await bench.broker.unregister(bench.worker_id)
    await bench.push(prepared())
    assert await counted(bench) == (1, 0)


async def test_a_job_whose_message_is_lost_comes_with_the_next_claim(
    bench: Bench, listening: Listening, redis_server: RedisServer, broker: RedisBroker
) -> None:
    await bench.claim()
    with closing(redis_server.client()) as client, closing(redis_server.client()) as other:
        # The last one: those of earlier tests may still be closing.
        *_, worker = command_sync(client, "CLIENT", "LIST", "TYPE", "PUBSUB").splitlines()
        # Somebody else hears it instead.
        untyped: Any = other
        ears = untyped.pubsub()
        ears.subscribe(desk(client, broker))
        assert ears.get_message(timeout=5) is not None
        command_sync(client, "CLIENT", "KILL", "ID", worker.split(b"id=")[1].split()[0])
        [job] = await bench.push(prepared())
        assert await counted(bench) == (0, 1)
    [claim] = await bench.claim()
    assert claim.id == job
    assert await bench.claim() == []
    assert await bench.settle(settlement(claim, State.SUCCEEDED)) == frozenset()


async def test_what_nobody_fetches_goes_back(bench: Bench, listening: Listening) -> None:
    await bench.claim()
    [job] = await bench.push(prepared())
    assert await bench.state(job) is State.RUNNING

    async def back() -> bool:
        return await bench.state(job) is State.PENDING

    await eventually(back, timeout=PATIENCE_S + 5)
    found = await bench.job(job)
    assert (found.attempt, found.crashes) == (0, 0)
    [claim] = await bench.claim()
    assert (claim.id, claim.attempt) == (job, 1)


async def test_a_worker_that_leaves_gives_back_what_it_was_given(
    bench: Bench, listening: Listening
) -> None:
    await bench.claim()
    [job] = await bench.push(prepared())
    await bench.broker.unregister(bench.worker_id)
    found = await bench.job(job)
    assert (found.state, found.attempt, found.crashes) == (State.PENDING, 0, 0)
    assert await bench.broker.orphans(silent_s=60, limit=10) == []


async def test_every_job_is_claimed_once(bench: Bench, listening: Listening) -> None:
    """Claims and pushes at the same time, in every order in which they may meet."""
    await bench.broker.declare(Queue(name="default"))
    pushed: list[object] = []
    claims: list[Claim] = []

    async def settle(found: list[Claim]) -> None:
        claims.extend(found)
        ends = [settlement(one, State.SUCCEEDED) for one in found]
        assert await bench.settle(*ends) == frozenset()

    for number in range(300):
        job = prepared()
        pushed.append(job.id)
        push = asyncio.create_task(bench.push(job))
        for _ in range(number % 7):
            await asyncio.sleep(0)
        found = list(await bench.claim(1 + number % 2))
        await push
        await settle(found)

    async def finished() -> bool:
        await settle(list(await bench.claim()))
        return len(claims) >= len(pushed)

    await eventually(finished)
    assert sorted(str(one.id) for one in claims) == sorted(map(str, pushed))
    assert await counted(bench) == (0, 0)


async def test_what_is_no_job_is_ignored(
    bench: Bench, listening: Listening, redis_server: RedisServer, broker: RedisBroker
) -> None:
    await bench.claim()
    with closing(redis_server.client()) as client:
        for text in (b"", b"\0" * 40, b"x" * 500):
            command_sync(client, "PUBLISH", desk(client, broker), text)
    [job] = await bench.push(prepared())
    await woken(listening)
    assert [one.id for one in await bench.claim()] == [job]


@pytest.mark.parametrize("rescued", [False, True])
async def test_what_is_heard_late_is_asked_for(
    bench: Bench, listening: Listening, monkeypatch: pytest.MonkeyPatch, rescued: bool
) -> None:
    """A worker that was frozen hears of a job that another may have by now."""
    assert await bench.claim() == []
    monkeypatch.setattr("chancy.plugins.redis.jobs.handoff.LATE_S", -60.0)
    [job] = await bench.push(prepared())
    await woken(listening)
    if not rescued:
        assert [claim.id for claim in await bench.claim()] == [job]
        return
    [orphan] = await bench.broker.orphans(silent_s=0.0, limit=10)
    back = settlement(orphan, State.PENDING)._replace(refund=True, crashed=True)
    assert await bench.settle(back) == frozenset()
    other = Bench(bench.broker)
    await other.prepare()
    [claim] = await other.claim()
    assert (claim.id, claim.crashes) == (job, 1)
    assert await bench.claim() == []


async def test_a_desk_that_is_heard_through_a_replica_is_given_nothing(
    own_redis: Callable[..., RedisServer],
) -> None:
    """It would take what it hears for a claim, and another claims the job."""
    primary = own_redis(**{"repl-diskless-sync-delay": "0"})
    replica = own_redis(replicaof=f"127.0.0.1 {primary.port}")
    broker = RedisBroker(RedisSettings(url=primary.url))
    await broker.open()
    with closing(primary.client()) as client, closing(replica.client()) as other:
        await eventually(lambda: other.info("replication")["master_link_status"] == "up")
        bench = Bench(broker)
        await bench.prepare()
        untyped: Any = other
        ears = untyped.pubsub()
        ears.subscribe(broker.tag.encode() + b":desk:" + b"f" * 32)
        assert ears.get_message(timeout=5) is not None
        member = bench.worker_id.bytes + b"f" * 32
        command_sync(client, "ZADD", f"{broker.tag}:parked:default", 1, member)
        [job] = await bench.push(prepared())
        assert await bench.state(job) is State.PENDING
        command_sync(client, "PUBLISH", broker.tag.encode() + b":desk:" + b"f" * 32, b"the end")
        assert ears.get_message(timeout=5)["data"] == b"the end"
    await broker.close()

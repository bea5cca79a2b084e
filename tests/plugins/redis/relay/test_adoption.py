"""Jobs in Postgres whose queue is in Redis are taken there, each once, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from psycopg import AsyncConnection

from chancy import Chancy, Queue, State, Unique
from chancy.app.diagnosis import Why
from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Settlement
from chancy.broker.optional import Adoption
from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.plugins.redis.relay import adoption as moves
from chancy.plugins.redis.relay.adoption import JobAdoption
from chancy.plugins.redis.transport.chunks import take_back
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.postgres.connections.lane import Lane
from chancy.testing.conformance.bench import record
from chancy.worker.worker import Worker
from tests.plugins.redis.relay.moving import (
    FAST,
    adoption,
    application,
    arrived,
    fetch,
    insert,
    left,
    plane,
)
from tests.plugins.redis.trips import Calls, Send, around
from tests.support import jobs
from tests.support.redis_commands import command_sync
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually, gives


@pytest.fixture
async def chancy(dsn: str, redis_url: str) -> AsyncGenerator[Chancy]:
    jobs.noted.clear()
    async with application(dsn, redis_url) as made:
        yield made


def broken_off(monkeypatch: pytest.MonkeyPatch, name: str, meanwhile: Any = None) -> None:
    """Have it die before one of its statements, or do something there."""
    ordinary = JobAdoption._fetch

    async def fetch(self: JobAdoption, which: str, *parameters: object) -> Sequence[Sequence[Any]]:
        if which == name:
            if meanwhile is None:
                raise BrokerUnavailable("killed")
            await meanwhile()
        return await ordinary(self, which, *parameters)

    monkeypatch.setattr(JobAdoption, "_fetch", fetch)


def once(act: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Does it the first time only."""
    left = [act]

    async def first() -> None:
        if left:
            await left.pop()()

    return first


async def test_all_that_a_job_has_behind_it_comes_along(chancy: Chancy) -> None:
    (id,) = await insert(chancy, [7], '{"k": "v"}')
    await fetch(
        chancy,
        """update chancy.jobs set priority = 9, attempt = 2, crashes = 1, max_attempts = 5,
        limits = '{"time": 60}', run_at = now() - interval '1 minute',
        pushed_at = now() - interval '1 hour', errors = chancy.with_failure(
          chancy.with_failure(null, '{"types": ["a.B"], "message": "one ü"}', 1, id, now(), now()),
          '{"types": ["a.C"], "message": "two"}', 2, null, now(), now())""",
    )
    before = (await chancy.control.get([id]))[id]
    assert await (await adoption(chancy))("fast") == (1, False, False)
    after = (await (await plane(chancy)).get([id]))[id]
    assert [(one["attempt"], one["message"]) for one in after.errors] == [(1, "one ü"), (2, "two")]
    assert after.errors[0]["worker_id"] == str(id)
    assert [one.keys() for one in after.errors] == [one.keys() for one in before.errors]
    assert before.pushed_at is not None
    assert after.pushed_at is not None
    assert abs((after.pushed_at - before.pushed_at).total_seconds()) < 0.001
    same = replace(after, errors=before.errors, pushed_at=before.pushed_at)
    assert same == before
    assert await arrived(chancy)
    async with Worker(chancy):
        done = await chancy.wait_for(id, 10)
    assert (done.result, done.attempt, done.crashes) == (7, 3, 1)


async def test_order_and_priority_are_kept(chancy: Chancy) -> None:
    ids = await insert(chancy, range(4))
    await fetch(chancy, "update chancy.jobs set priority = 5 where id = $1", ids[3])
    await (await adoption(chancy))("fast")
    broker = await plane(chancy)
    ahead = {id: place.ahead for id in ids if (place := await broker.position(id)) is not None}
    assert [ahead[id] for id in ids] == [1, 2, 3, 0]


async def insert_large(chancy: Chancy, jobs: int, meta: str | None = None) -> None:
    """Push jobs with 880 KB of arguments, which compress badly."""
    await fetch(
        chancy,
        """select chancy.push('fast', 'tests.support.jobs.note', (
            select jsonb_build_object('value', string_agg(translate(
              encode(sha512((n || ' ' || i)::text::bytea), 'base64'), E'\n', ''), ''))
            from generate_series(1, 10000) as i), meta => $2::text::jsonb)
        from generate_series(1, $1::int) as n""",
        jobs,
        meta,
    )


async def test_locked_jobs_keep_no_others_in_postgres(chancy: Chancy, dsn: str) -> None:
    ids = await insert(chancy, range(moves.BATCH + 1))
    async with await AsyncConnection.connect(dsn) as other:
        locked = "select from chancy.jobs where id = any(%s) for update"
        await other.execute(locked, [ids[: moves.BATCH]])
        assert (await (await adoption(chancy))("fast")).jobs == 1
        await other.rollback()
    assert (await (await adoption(chancy))("fast")).jobs == moves.BATCH


async def test_a_late_end_of_a_move_leaves_a_later_one_alone(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await insert(chancy, [1])

    async def move_anew() -> None:
        await fetch(chancy, "delete from chancy.redis_moves")
        await fetch(chancy, "select from chancy.redis_move('fast', 1, 1, 10)")

    with monkeypatch.context() as patch:
        broken_off(patch, "end", move_anew)
        assert (await (await adoption(chancy))("fast")).jobs == 1
    assert await left(chancy) == (1, 1)


async def take_over(chancy: Chancy) -> None:
    """As another worker does after the end of a lease."""
    await fetch(chancy, "update chancy.redis_moves set taken_until = now()")
    ((id,),) = await fetch(chancy, "select id from chancy.redis_move('fast', 1, 1, 10)")
    assert id is not None


@pytest.mark.parametrize("before", ["end", "forget", "refuse"])
async def test_a_late_worker_leaves_a_move_alone_that_another_one_has_taken_over(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """Otherwise that one pushes the job again, after it has run."""
    await fetch(chancy, PUSH, 1, 0.0)
    broker = await plane(chancy)
    if before == "refuse":
        await broker.client.command("SET", f"{broker.tag}:u", "")

    async def late() -> None:
        await take_over(chancy)

    async def replaced() -> None:
        await fetch(chancy, PUSH, 2, 0.0)

    with monkeypatch.context() as patch:
        if before == "forget":
            broken_off(patch, "end", replaced)
        broken_off(patch, before, late)
        await (await adoption(chancy))("fast")
    assert await left(chancy) == (1, 1)
    ((problem,),) = await fetch(chancy, "select problem from chancy.redis_moves")
    assert problem is None
    if before == "end":
        assert await broker.client.command("ZCARD", f"{broker.tag}:relayed") == 1
        assert (await broker.counts())["fast"].scheduled == 1


async def test_the_late_end_of_an_earlier_move_leaves_a_later_move_alone(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres still has the job: it would run twice."""
    await insert(chancy, [1])
    adopt, broker = await adoption(chancy), await plane(chancy)
    with monkeypatch.context() as patch:
        broken_off(patch, "end")
        with pytest.raises(BrokerUnavailable, match="killed"):
            await adopt("fast")
    client: Any = broker.client
    (mark,) = await client.command("ZRANGE", f"{broker.tag}:relayed", 0, -1)
    earlier = mark[:16] + bytes(len(mark) - 16)
    assert earlier != mark
    assert await client.run("relayed", earlier) == 1
    found = (await broker.counts())["fast"]
    assert (found.scheduled, found.pending) == (1, 0)
    assert await client.run("relayed", mark) == 1
    found = (await broker.counts())["fast"]
    assert (found.scheduled, found.pending) == (0, 1)


async def test_a_late_removal_from_redis_leaves_a_job_that_another_worker_has_moved(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((id,),) = await fetch(chancy, PUSH, 1, 0.0)
    late, other, broker = await adoption(chancy), await adoption(chancy), await plane(chancy)
    marks = list[bytes]()

    async def replaced() -> None:
        await fetch(chancy, PUSH, 2, 0.0)

    async def freeze(client: ShardClient, ids: Sequence[bytes]) -> set[UUID]:
        if not marks:
            marks.extend(ids)
            await fetch(chancy, "update chancy.redis_moves set taken_until = now()")
            await other("fast")  # moves it back
            await other("fast")
            assert await left(chancy) == (0, 0)
        return await take_back(client, ids)

    with monkeypatch.context() as patch:
        broken_off(patch, "end", once(replaced))
        patch.setattr("chancy.plugins.redis.relay.adoption.take_back", freeze)
        await late("fast")
    assert len(marks) == 1
    assert (await broker.get([id]))[id].arguments == {"value": 2}


@pytest.mark.parametrize("ends", ["unchanged", "cancelled"])
async def test_a_row_that_is_locked_during_its_move_delays_no_other(
    chancy: Chancy, dsn: str, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    ids = await insert(chancy, range(9))
    adopt, broker = await adoption(chancy), await plane(chancy)
    async with await AsyncConnection.connect(dsn) as other:

        async def lock() -> None:
            await other.execute("select from chancy.jobs where id = %s for update", [ids[4]])

        with monkeypatch.context() as patch:
            broken_off(patch, "end", lock)
            async with asyncio.timeout(30):
                assert (await adopt("fast")).jobs == 9
        assert await left(chancy) == (1, 1)
        assert (await broker.counts())["fast"].pending == 8
        if ends == "unchanged":
            await other.rollback()
        else:
            await other.execute("delete from chancy.jobs where id = %s", [ids[4]])
            await other.commit()
    # By the worker itself, long before the end of its lease.
    await adopt("fast")
    assert await arrived(chancy)
    assert set(await broker.get(ids)) == set(ids) - ({ids[4]} if ends == "cancelled" else set())
    assert (await broker.counts())["fast"].pending == (9 if ends == "unchanged" else 8)


async def test_large_jobs_move_a_few_at_a_time(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine takes seconds to encode these jobs.
    monkeypatch.setattr("chancy.plugins.redis.relay.adoption.LEASE_S", 120.0)
    await insert_large(chancy, 12)
    adopt = await adoption(chancy)
    await die_before_the_push(adopt, monkeypatch)
    await fetch(chancy, "update chancy.redis_moves set taken_until = now()")
    moved = [await adopt("fast") for _ in range(3)]
    assert [(one.jobs, one.more) for one in moved] == [(10, True), (2, True), (0, False)]
    assert await arrived(chancy)


async def test_large_jobs_that_stay_are_claimed_a_few_at_a_time(chancy: Chancy) -> None:
    await insert_large(chancy, 8, '{"batch": {}}')
    adopt = await adoption(chancy)
    async with Worker(chancy, queues=["none"]) as worker:

        async def claimed() -> int:
            claim = adopt.claim("fast", worker_id=worker.worker_id, limit=20, knows=lambda _: True)
            return len(await claim)

        assert [await claimed() for _ in range(3)] == [5, 3, 0]


async def test_several_take_each_job_once(chancy: Chancy) -> None:
    ids = await insert(chancy, range(900))
    adopt = await adoption(chancy)
    done = await asyncio.gather(*(adopt("fast") for _ in range(8)))
    total = sum(one.jobs for one in done)
    while not await arrived(chancy):
        total += (await adopt("fast")).jobs
    assert total == len(ids)
    assert (await (await plane(chancy)).counts())["fast"].pending == len(ids)


async def test_a_crash_after_the_push_does_not_run_the_job_twice(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "LEASE_S", 0.2)
    await chancy.declare(replace(FAST, poll_interval_s=0.1), upsert=True)
    (id,) = await insert(chancy, [1])
    adopt, broker = await adoption(chancy), await plane(chancy)
    with monkeypatch.context() as patch:
        broken_off(patch, "end")
        with pytest.raises(BrokerUnavailable, match="killed"):
            await adopt("fast")
    assert await left(chancy) == (1, 1), "it is in both"
    async with Worker(chancy):
        await eventually(lambda: jobs.noted == [1])
        await eventually(lambda: arrived(chancy))
        # Where nothing is known of the job any more, it is known that it was there.
        await broker.client.command("DEL", broker.tag.encode() + b":j:" + id.bytes)
        # Removed after the row.
        marks = f"{broker.tag}:relayed"
        await eventually(lambda: gives(broker.client.command("ZCARD", marks), 0))
    assert jobs.noted == [1]


async def die_before_the_push(adopt: Adoption, monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(*_: object) -> None:
        raise BrokerUnavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr("chancy.plugins.redis.relay.adoption.JobAdoption._push", die)
        with pytest.raises(BrokerUnavailable, match="killed"):
            await adopt("fast")


async def test_a_crash_before_the_push_leaves_the_job_to_another_worker(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chancy.declare(replace(FAST, poll_interval_s=0.1), upsert=True)
    await insert(chancy, [1])
    adopt, broker = await adoption(chancy), await plane(chancy)
    await die_before_the_push(adopt, monkeypatch)
    assert (await adopt("fast")).jobs == 0, "another has it"
    assert await left(chancy) == (1, 1)
    await fetch(chancy, "update chancy.redis_moves set taken_until = now()")
    async with Worker(chancy):
        await eventually(lambda: jobs.noted == [1])
    assert await broker.client.command("ZCARD", f"{broker.tag}:relayed") == 0


async def test_a_frozen_worker_cannot_settle(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (id,) = await insert(chancy, [1])
    adopt, broker = await adoption(chancy), await plane(chancy)
    with monkeypatch.context() as patch:
        patch.setattr(moves, "LEASE_S", 0.05)
        broken_off(patch, "take", lambda: asyncio.sleep(0.1))  # until after its end
        assert (await adopt("fast")).jobs == 0
    assert "redis_relay_late jobs=1" in caplog.text
    assert await broker.get([id]) == {}
    await eventually(lambda: arrives(adopt))


async def arrives(adopt: Any) -> bool:
    return bool((await adopt("fast")).jobs)


async def test_a_job_cancelled_during_its_move_is_cancelled(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = await insert(chancy, [1])
    adopt, broker = await adoption(chancy), await plane(chancy)

    async def cancel() -> None:
        assert await chancy.cancel(id)

    broken_off(monkeypatch, "end", cancel)
    await adopt("fast")
    assert await broker.get([id]) == {}
    assert (await chancy.control.get([id]))[id].state is State.CANCELLED
    assert await arrived(chancy)
    assert await broker.client.command("ZCARD", f"{broker.tag}:relayed") == 0


async def test_a_job_claimed_in_postgres_during_its_move_does_not_run_in_redis(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a worker that has not read yet that the queue is in Redis."""
    (id,) = await insert(chancy, [1])
    adopt, broker = await adoption(chancy), await plane(chancy)
    worker = record()
    for one in (chancy.control, broker):
        await one.register(worker)

    async def claim() -> None:
        (claimed,) = await chancy.control.claim("fast", worker_id=worker.id, limit=9)
        assert claimed.id == id
        assert await broker.run_now([id]) == frozenset()
        assert await broker.claim("fast", worker_id=worker.id, limit=9) == []

    broken_off(monkeypatch, "end", claim)
    await adopt("fast")
    assert await broker.get([id]) == {}
    assert (await chancy.control.get([id]))[id].state is State.RUNNING
    assert await left(chancy) == (1, 0)


async def test_nothing_is_moved_once_the_queue_has_another_broker(chancy: Chancy) -> None:
    """By a worker that has not read that yet."""
    adopt = await adoption(chancy)
    await chancy.declare(replace(FAST, broker="postgres"), upsert=True)
    await insert(chancy, [1])
    assert (await adopt("fast")).jobs == 0
    assert await left(chancy) == (1, 0)


#: A push that replaces.
PUSH = (
    "select chancy.push('fast', 'tests.support.jobs.note', jsonb_build_object('value', $1::int),"
    " unique_key => 'one', on_conflict => 'replace', delay => $2::float8 * interval '1 s')"
)


async def test_a_job_that_ends_in_postgres_during_its_move_keeps_its_outcome(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = await insert(chancy, [1])
    adopt, broker = await adoption(chancy), await plane(chancy)
    worker = record()
    await chancy.control.register(worker)

    async def run() -> None:
        (claimed,) = await chancy.control.claim("fast", worker_id=worker.id, limit=9)
        await chancy.control.settle([Settlement(id, claimed.lease, State.SUCCEEDED, result="7")])

    broken_off(monkeypatch, "end", run)
    await adopt("fast")
    assert await broker.get([id]) == {}
    assert (await chancy.wait_for(id, 30)).result == 7
    assert await left(chancy) == (0, 0)


@pytest.mark.parametrize("delay_s", [0.5, 0.0])
async def test_a_job_replaced_during_its_move_is_moved_back(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch, delay_s: float
) -> None:
    """A push finds it pending in Postgres, and puts it off or gives it other arguments there."""
    ((id,),) = await fetch(chancy, PUSH, 1, 0.0)
    adopt, broker = await adoption(chancy), await plane(chancy)

    async def replace_it() -> None:
        ((found,),) = await fetch(chancy, PUSH, 2, delay_s)
        assert found == id

    with monkeypatch.context() as patch:
        broken_off(patch, "end", replace_it)
        await adopt("fast")
    assert await broker.get([id]) == {}
    assert await left(chancy) == (1, 0)
    async with Worker(chancy):
        await eventually(lambda: jobs.noted == [2])
    assert await arrived(chancy)


#: How the run of a job in Redis ends: for ever, or until a retry, or until a worker knows it.
ENDS: Mapping[str, Callable[[Settlement], Settlement]] = {
    "succeeded": lambda one: one,
    "scheduled": lambda one: one._replace(state=State.SCHEDULED, delay_s=3_600.0),
    "held": lambda one: one._replace(state=State.HELD, meta='{"unknown_function": "x"}'),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_job_replaced_during_its_move_runs_again_if_redis_has_begun_it(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    ((id,),) = await fetch(chancy, PUSH, 1, 0.0)
    adopt, broker = await adoption(chancy), await plane(chancy)
    worker = record()
    await broker.register(worker)

    async def attempt() -> None:
        """As after the end of a lease."""
        await fetch(chancy, "update chancy.redis_moves set taken_until = now()")
        await adopt("fast")

    async def claim() -> tuple[Claim, object]:
        (claimed,) = await broker.claim("fast", worker_id=worker.id, limit=9)
        assert claimed.id == id
        return claimed, (await broker.get([id]))[id].arguments

    with monkeypatch.context() as patch:
        broken_off(patch, "end")
        with pytest.raises(BrokerUnavailable, match="killed"):
            await adopt("fast")
    assert await fetch(chancy, PUSH, 2, 0.0) == [(id,)]
    await broker.client.command("ZADD", f"{broker.tag}:due", 0, id.bytes)
    await broker.promote(10)
    first, arguments = await claim()
    assert arguments == {"value": 1}
    for _ in range(2):
        await attempt()
    assert await left(chancy) == (1, 1)
    done = ENDS[end](Settlement(id, first.lease, State.SUCCEEDED))
    assert await broker.settle([done]) == frozenset()
    for _ in range(2):
        await attempt()
    assert await arrived(chancy)
    assert (await broker.counts())["fast"] == (1, 0, 0, 0)
    _, arguments = await claim()
    assert arguments == {"value": 2}
    assert await broker.client.command("ZCARD", f"{broker.tag}:relayed") == 0


async def test_a_job_that_becomes_due_during_its_move_is_not_lost(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken by one who dies, put off, found so by the next one, and due before that has ended."""
    ((id,),) = await fetch(chancy, PUSH, 1, 0.0)
    adopt = await adoption(chancy)
    await die_before_the_push(adopt, monkeypatch)
    assert await fetch(chancy, PUSH, 2, 3600.0) == [(id,)]
    await fetch(chancy, "update chancy.redis_moves set taken_until = now()")

    async def fall_due() -> None:
        await fetch(chancy, "update chancy.jobs set state = 0, run_at = null")

    with monkeypatch.context() as patch:
        broken_off(patch, "end", fall_due)
        assert (await adopt("fast")).jobs == 0
    assert await left(chancy) == (1, 0)
    async with Worker(chancy):
        await eventually(lambda: jobs.noted == [2])


async def test_a_unique_key_is_looked_at_on_arrival(
    chancy: Chancy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    job = jobs.note.job(value=1).with_queue("fast").with_unique(Unique(key="once"))
    held = await chancy.push(job)
    push = "select chancy.push('fast', 'tests.support.jobs.note', unique_key => 'once')"
    ((skipped,),) = await fetch(chancy, push)
    await (await adoption(chancy))("fast")
    assert f"redis_relay_skipped job={skipped} holder={held.id}" in caplog.text
    assert await arrived(chancy)


async def test_a_few_jobs_with_large_metas_are_replaced_at_a_time(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    push = """
        select chancy.push('fast', 'tests.support.jobs.note', jsonb_build_object('value', $1::int),
          unique_key => n::text, on_conflict => 'replace', meta => $2::text::jsonb)
        from generate_series(1, 8) as n"""
    adopt, broker = await adoption(chancy), await plane(chancy)
    ids = [row[0] for row in await fetch(chancy, push, 1, f'{{"m": "{"m" * 60_000}"}}')]
    assert (await adopt("fast")).jobs == 8
    answers: list[object] = []

    async def noted(calls: Calls, send: Send) -> list[Any]:
        replies = await send()
        if calls[0].script == "jobs.relay":
            answers.extend(replies)
        return replies

    around(monkeypatch, noted)
    await fetch(chancy, push, 2, None)
    assert (await adopt("fast")).jobs == 8
    # All 8, then twice 4, and 2.
    assert [answer == b"large" for answer in answers] == [True, *2 * [True, False, False]]
    found = await broker.get(ids)
    assert [found[id].arguments for id in ids] == [{"value": 2}] * 8
    assert {len(one.meta["m"]) for one in found.values()} == {60_000}


async def test_a_refusal_of_redis_affects_one_job(
    chancy: Chancy, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await insert(chancy, range(9))
    bad = ids[4]
    adopt, broker = await adoption(chancy), await plane(chancy)
    # A key of another type is there: its script fails.
    await broker.client.command("SET", f"{broker.tag}:u", "")
    await fetch(chancy, "update chancy.jobs set unique_key = '\\x00' where id = $1", bad)
    assert (await adopt("fast")).jobs == 8
    assert f"redis_relay_refused job={bad}" in caplog.text
    ((id, problem),) = await fetch(chancy, "select id, problem from chancy.redis_moves")
    assert id == bad
    assert "WRONGTYPE" in problem
    explained = [reason.text for reason in await chancy.why(bad) if reason.why is Why.HELD]
    assert len(explained) == 1
    assert "refused the job once" in explained[0]
    assert "WRONGTYPE" in explained[0]
    assert Why.HELD not in [reason.why for reason in await chancy.why(ids[0])]
    examined = {one.about: one for one in await chancy.hooks.examine(chancy)}
    assert f"1 in Postgres, first {bad}: " in examined["redis refused jobs"].found
    pauses = []
    for _ in range(11):
        ((pause_s,),) = await fetch(
            chancy,
            "select extract(epoch from taken_until - now())::float8 from chancy.redis_moves",
        )
        pauses.append(pause_s)
        assert (await adopt("fast")).jobs == 0
        await fetch(chancy, "update chancy.redis_moves set taken_until = now()")
        assert (await adopt("fast")).jobs == 0
    shorter = [earlier < later for earlier, later in pairwise(pauses[:10])]
    assert (pauses[0] <= 10, all(shorter), pauses[-1] <= 3_600) == (True, True, True)
    await broker.client.command("DEL", f"{broker.tag}:u")
    await fetch(chancy, "update chancy.redis_moves set taken_until = now()")
    assert (await adopt("fast")).jobs == 1
    assert set(await broker.get(ids)) == set(ids)
    examined = {one.about: one for one in await chancy.hooks.examine(chancy)}
    assert examined["redis refused jobs"].ok


@pytest.mark.parametrize(
    "change",
    [
        "attempt = -1",
        "crashes = -1",
        "max_attempts = -1",
        "func = repeat('x', 70000)",
        """errors = '[{"attempt": [1]}]'""",
        "arguments = (repeat('[', 5000) || repeat(']', 5000))::jsonb",
    ],
)
async def test_a_row_with_values_that_no_job_has_stops_no_other(
    chancy: Chancy, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    ids = await insert(chancy, range(9))
    bad = ids[4]
    await fetch(chancy, f"update chancy.jobs set {change} where id = $1", bad)
    adopt, broker = await adoption(chancy), await plane(chancy)
    assert (await adopt("fast")).jobs == 8
    assert set(await broker.get(ids)) == set(ids) - {bad}
    assert f"redis_relay_refused job={bad}" in caplog.text
    ((id, problem),) = await fetch(chancy, "select id, problem from chancy.redis_moves")
    assert id == bad
    assert problem


@pytest.mark.parametrize("commands", [("eval", "evalsha"), ("@write",)])
async def test_a_user_that_may_not_is_no_refusal_of_jobs(
    dsn: str,
    own_redis: Callable[..., RedisServer],
    monkeypatch: pytest.MonkeyPatch,
    commands: Sequence[str],
) -> None:
    monkeypatch.setattr(moves, "LEASE_S", 0.2)
    server = own_redis()
    with closing(server.client()) as admin:
        command_sync(admin, "ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all")
        url = server.url.replace("redis://", "redis://shop:secret@")
        async with application(dsn, url) as chancy:
            await insert(chancy, range(9))
            adopt = await adoption(chancy)
            command_sync(admin, "ACL", "SETUSER", "shop", *(f"-{one}" for one in commands))
            with pytest.raises(StatementFailed, match="refused access"):
                await adopt("fast")
            command_sync(admin, "ACL", "SETUSER", "shop", *(f"+{one}" for one in commands))

            async def moved() -> bool:
                await adopt("fast")
                return await arrived(chancy)

            await eventually(moved)


async def test_jobs_of_workflows_and_batches_stay_in_postgres(chancy: Chancy) -> None:
    steps: list[UUID] = await insert(chancy, [1, 2], '{"workflow": {}}')
    steps += await insert(chancy, [3], '{"batch": {}}')
    (other,) = await insert(chancy, [4])
    assert await (await adoption(chancy))("fast") == (1, False, True)
    async with Worker(chancy):
        await eventually(lambda: sorted(map(str, jobs.noted)) == ["1", "2", "3", "4"])
        await eventually(lambda: arrived(chancy))
    assert set(await chancy.control.get([*steps, other])) == set(steps)


async def test_jobs_of_workflows_and_batches_are_claimed_by_priority(chancy: Chancy) -> None:
    steps = await insert(chancy, [1, 2], '{"workflow": {}}')
    steps += await insert(chancy, [3], '{"batch": {}}')
    await fetch(chancy, "update chancy.jobs set priority = 5 where id = $1", steps[2])
    await insert(chancy, [4])
    adopt = await adoption(chancy)
    assert (await adopt("fast")).jobs == 1
    async with Worker(chancy, queues=["none"]) as worker:

        async def claimed() -> list[UUID]:
            found = await adopt.claim(
                "fast", worker_id=worker.worker_id, limit=2, knows=lambda _: True
            )
            return [one.id for one in found]

        assert [await claimed() for _ in range(3)] == [[steps[2], steps[0]], [steps[1]], []]


async def test_claims_of_jobs_that_stay_pass_those_of_other_workers(
    chancy: Chancy, dsn: str
) -> None:
    await insert(chancy, range(100), '{"batch": {}}')
    claim = "select id from chancy.redis_claim(%s, gen_random_uuid(), 'fast', 10)"
    async with Worker(chancy, queues=["none"]) as worker, AsyncExitStack() as stack:
        for _ in range(5):
            connection = await AsyncConnection.connect(dsn)
            await stack.enter_async_context(connection)
            cursor = await connection.execute(claim, [worker.worker_id])
            assert len(await cursor.fetchall()) == 10, "others have claimed, and not committed yet"


async def test_jobs_being_moved_do_not_run_in_postgres(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker finds steps in Postgres, and the job, which has come to Redis, too."""
    # Until it has ended, no worker runs the job in Redis.
    monkeypatch.setattr(moves, "LEASE_S", 1.0)
    await insert(chancy, [1, 2], '{"workflow": {}}')
    await insert(chancy, [3])
    with monkeypatch.context() as patch:
        broken_off(patch, "end")
        with pytest.raises(BrokerUnavailable, match="killed"):
            await (await adoption(chancy))("fast")
    assert await left(chancy) == (3, 1), "one is in both"
    await fetch(chancy, "update chancy.redis_moves set taken_until = now() + interval '1 hour'")
    async with Worker(chancy):
        await eventually(lambda: len(jobs.noted) == 3)
        await insert(chancy, [4], '{"batch": {}}')
        await eventually(lambda: len(jobs.noted) == 4)
        await eventually(lambda: gives(left(chancy), (1, 1)))
        await fetch(chancy, "update chancy.redis_moves set taken_until = now()")
        await eventually(lambda: arrived(chancy))
    assert sorted(map(str, jobs.noted)) == ["1", "2", "3", "4"]


async def test_a_claim_of_steps_whose_answer_was_lost_is_found_again(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary, lost = Lane.fetch, list[str]()

    async def fetch(self: Lane, sql: str, *parameters: object, **options: Any) -> Any:
        rows = await ordinary(self, sql, *parameters, **options)
        if "redis_claim" in sql and rows and not lost:
            lost.append(sql)
            raise BrokerUnavailable("cut off")
        return rows

    monkeypatch.setattr(Lane, "fetch", fetch)
    await insert(chancy, [1], '{"workflow": {}}')
    async with Worker(chancy):
        await eventually(lambda: jobs.noted == [1])
    assert lost


async def test_a_worker_that_is_to_stop_takes_over_no_more(
    chancy: Chancy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "BATCH", 1)
    numbers = range(300)
    await insert(chancy, numbers)
    stopping: list[asyncio.Task[None]] = []

    async def stop() -> None:
        if not stopping:
            stopping.append(asyncio.create_task(worker.stop()))

    broken_off(monkeypatch, "end", stop)
    async with Worker(chancy) as worker:
        await eventually(lambda: bool(stopping))
        await stopping[0]
    assert (await left(chancy))[0] > 250


async def test_waiting_jobs_move_with_their_queue(dsn: str, redis_url: str) -> None:
    """A worker in a burst ends when all of it has been run."""
    jobs.noted.clear()
    async with application(dsn, redis_url, queue=Queue(name="fast", executor="async")) as chancy:
        numbers = list(range(600))
        made = [jobs.note.job(value=n).with_queue("fast") for n in numbers]
        ids = [one.id for one in await chancy.push_many(made)]
        assert await left(chancy) == (600, 0)
        await chancy.declare(FAST, upsert=True)
        async with Worker(chancy, burst=True) as worker:
            await worker.wait_for_shutdown()
        assert sorted(int(str(n)) for n in jobs.noted) == numbers
        assert await arrived(chancy)
        found = await (await plane(chancy)).get(ids)
        assert {one.state for one in found.values()} == {State.SUCCEEDED}
        assert len(found) == 600
        assert await chancy.control.get(ids) == {}

"""What is asked for at once of a Redis server is done in pieces that hold up nobody."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from typing import Any

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Note
from chancy.broker.values import Cancellation, JobFilter, PreparedJob
from chancy.errors import BrokerUnavailable, DuplicateJob, StatementFailed
from chancy.job.unique import OnConflict, UniqueKey
from chancy.plugins.redis import RedisBroker
from chancy.plugins.redis.transport.chunks import BATCH, BYTES, MOVED, fit, take_back
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.brokers import opened
from tests.plugins.redis.jobs.script_times import timed
from tests.plugins.redis.trips import Calls, Send, around, lose, script
from tests.support.redis_fixtures import RedisServer

#: More than any piece.
MANY = 300
#: Bytes of arguments of which few make a piece.
LARGE = 60_000
#: The share of the few runs of a script, up to thirty, that may be late: the heaviest need nearly
#: all of the time that there is, so that a noisy machine makes some of them late. Of pieces three
#: times as large more than that are late on a quiet one, too.
SOME = 0.25
#: The most that a script is given and executes: two or three for each of its jobs, of which there
#: are 128 at the most, and 64 where they end.
MOST = {"push_plain": 300, "claim": 200, "promote": 200, "settle": 250}


@pytest.fixture
def server(own_redis: Callable[..., RedisServer]) -> RedisServer:
    return own_redis()


@pytest.fixture
async def bench(server: RedisServer) -> AsyncIterator[Bench]:
    async with opened(server.url, keep_failed=MANY) as (_, bench):
        yield bench


def keyed(conflict: OnConflict, key: bytes | None = None) -> PreparedJob:
    return prepared(unique=UniqueKey(key or uuid.uuid4().bytes, conflict))


def large(count: int, **options: Any) -> list[PreparedJob]:
    """Some that are small among them."""
    text = '{"text": "' + "x" * LARGE + '"}'
    return [prepared(arguments=text if n % 5 else "{}", **options) for n in range(count)]


def link_of(bench: Bench) -> ShardClient:
    assert isinstance(bench.broker, RedisBroker)
    return bench.broker.client


def fail_script(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, error: Exception
) -> list[int]:
    """Have a run of a script end in an error; gives the lengths of all its runs."""
    runs = list[int]()

    async def failing(calls: Calls, send: Send) -> list[Any]:
        if calls[0].script == f"jobs.{name}":
            runs.append(len(calls[0].args))
            if len(runs) == number:
                raise error
        return await send()

    around(monkeypatch, failing)
    return runs


async def go_through(bench: Bench, jobs: Sequence[PreparedJob]) -> None:
    """Have everything done with many jobs that is done with many."""
    broker, ids = bench.broker, [job.id for job in jobs]
    await broker.push(jobs)
    assert (await broker.get(ids)).keys() == set(ids)
    assert (await broker.watch(ids)).keys() == set(ids)
    found = await broker.find(JobFilter(limit=MANY))
    assert [job.id for job in found] == sorted(ids, reverse=True)[:MANY]
    claims = await bench.claim(len(ids))
    assert [claim.id for claim in claims] == ids
    notes = [Note(claim.id, claim.lease, '{"half": true}') for claim in claims]
    assert await broker.update_meta(notes) == frozenset()
    broke = Failure.named("shop.errors.Broke", "it broke")
    again = [
        settlement(one, State.SCHEDULED)._replace(delay_s=60.0, failure=broke) for one in claims
    ]
    assert await broker.settle(again) == frozenset()
    assert await broker.run_now(ids) == frozenset(ids)
    claims = await bench.claim(len(ids))
    later = [settlement(one, State.SCHEDULED)._replace(delay_s=-1.0) for one in claims]
    old = [one._replace(lease=uuid.uuid4()) for one in later[::2]]
    assert await broker.settle(old) == frozenset(one.id for one in old)
    assert await broker.settle(later) == frozenset()
    assert (await broker.promote(len(ids))).promoted == len(ids)
    claims = await bench.claim(len(ids))
    ends = [settlement(one, State.FAILED)._replace(failure=broke) for one in claims[::2]]
    ends += [settlement(one, State.SUCCEEDED)._replace(result="1") for one in claims[1::2]]
    assert await broker.settle(ends) == frozenset()
    assert {job.attempt for job in (await broker.get(ids)).values()} == {3}
    await broker.unwatch(ids)


async def test_no_script_takes_long(
    bench: Bench, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, keys = bench.broker, [uuid.uuid4().bytes for _ in range(MANY)]
    with timed(server, monkeypatch) as times:
        await go_through(bench, [prepared() for _ in range(MANY)])
        await broker.push([keyed("skip") for _ in range(MANY)])
        await broker.push([keyed("replace", key) for key in keys])
        taken = await broker.push([keyed("replace", key) for key in keys])
        assert len(taken) == MANY
        mixed = [prepared(priority=n % 7, delay_s=n % 2 or None) for n in range(MANY)]
        await broker.push(mixed)
        await broker.push(mixed)
        answers = await broker.cancel([job.id for job in mixed])
        assert set(answers.values()) == {Cancellation.CANCELLED}
        last = [prepared() for _ in range(MANY)]
        await broker.push(last)
        await take_back(link_of(bench), [job.id.bytes for job in last])
        assert not await broker.get([job.id for job in last])
    times.check(interrupted=SOME)
    heavy = {name: max(times.work[name]) for name in MOST}
    assert {name for name in MOST if not 0 < heavy[name] <= MOST[name]} == set(), heavy


async def test_few_large_jobs_are_a_piece(
    bench: Bench, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with timed(server, monkeypatch) as times:
        await go_through(bench, large(100))
        jobs = large(100, delay_s=60.0)
        await bench.broker.push(jobs)
        await bench.broker.cancel([job.id for job in jobs])
    found = times.check(interrupted=SOME)
    for name in (
        "push",
        "claim",
        "settle",
        "update_meta",
        "promote",
        "run_now",
        "cancel",
        "fetch",
        "find",
    ):
        assert len(found[name]) >= 4, name


async def test_few_large_jobs_of_many_dead_workers_are_a_piece(bench: Bench) -> None:
    jobs = large(24)
    await bench.broker.push(jobs)
    for _ in range(8):
        dead = Bench(bench.broker)
        await dead.prepare()
        assert len(await dead.claim(3)) == 3
    pieces: list[Sequence[Claim]] = []
    while orphans := await bench.broker.orphans(heartbeat_age_s=0.0, limit=MANY):
        pieces.append(orphans)
        back = [settlement(claim, State.PENDING) for claim in orphans]
        assert await bench.broker.settle(back) == frozenset()
    assert sorted(one.id for piece in pieces for one in piece) == sorted(job.id for job in jobs)
    # The fourth large one exceeds what a script reads, of however many workers.
    assert max(sum(len(one.arguments or "") > LARGE for one in piece) for piece in pieces) == 4


def test_a_piece_has_so_many_jobs_and_bytes() -> None:
    assert fit([], MOVED) == 0
    assert fit([b"x"] * (MOVED + 1), MOVED) == MOVED
    assert fit([b"x" * BYTES, b"x"], MOVED) == 1
    assert fit([b"x" * (BYTES + 1)], MOVED) == 1
    assert fit([b"x" * (BYTES // 3)] * 9, MOVED) == 3


async def test_a_job_that_is_taken_back_leaves_the_period_of_another(bench: Bench) -> None:
    within = UniqueKey(b"key", "skip", period_s=3_600.0)
    [claim] = await bench.running(prepared(unique=within))
    await bench.settle(settlement(claim, State.SUCCEEDED))
    gone, again = prepared(unique=within._replace(period_s=None)), prepared(unique=within)
    assert await bench.broker.push([gone]) == {}
    await take_back(link_of(bench), [gone.id.bytes])
    assert await bench.broker.push([again]) == {again.id: claim.id}
    # Its own period ends with it.
    own = UniqueKey(b"own", "skip", period_s=3_600.0)
    first, second = prepared(unique=own), prepared(unique=own)
    assert await bench.broker.push([first]) == {}
    await take_back(link_of(bench), [first.id.bytes])
    assert await bench.broker.push([second]) == {}


async def test_a_key_that_is_held_refuses_a_call_before_any_of_it_is_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the last piece; and the jobs run in the order of the call."""
    held = keyed("raise")
    assert held.unique is not None
    await bench.push(held)
    jobs = [prepared(priority=n % 2) for n in range(MANY)]
    again = keyed("raise", held.unique.key)
    taken_back = fail_script(monkeypatch, "take_back", 0, AssertionError())
    with pytest.raises(DuplicateJob) as raised:
        await bench.broker.push([*jobs, again])
    assert raised.value.id == held.id
    assert not taken_back
    assert not await bench.broker.get([again.id, *(job.id for job in jobs)])
    assert (await bench.broker.counts())["default"].pending == 1
    await bench.claim()
    await bench.broker.push([*jobs, keyed("raise"), prepared(priority=1)])
    await bench.broker.push([last := prepared()])
    claims = await bench.claim(1_000)
    assert [one.id for one in claims if one.id != last.id][: MANY // 2] == [
        job.id for job in jobs if job.priority
    ]
    order = [one.id for one in claims]
    assert order[MANY // 2 + 1 : -2] == [job.id for job in jobs if not job.priority]
    assert order[-1] == last.id


async def test_two_of_a_call_that_must_not_be_are_found_before_any_is_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = keyed("skip")
    assert first.unique is not None
    jobs = [first, *(prepared() for _ in range(MANY)), keyed("raise", first.unique.key)]
    stored = fail_script(monkeypatch, "push", 0, AssertionError())
    with pytest.raises(DuplicateJob) as raised:
        await bench.broker.push(jobs)
    assert raised.value.id == first.id
    assert not stored
    assert not await bench.broker.get([job.id for job in jobs])


async def test_jobs_stored_by_a_refused_call_are_removed(bench: Bench) -> None:
    """But for jobs that another call has pushed."""
    held = keyed("raise")
    assert held.unique is not None
    before = keyed("raise")
    await bench.push(held, before)
    jobs = [before, *(keyed("raise") for _ in range(2 * BATCH)), keyed("raise", held.unique.key)]
    with pytest.raises(DuplicateJob):
        await bench.broker.push(jobs)
    assert (await bench.broker.get([job.id for job in jobs])).keys() == {before.id}
    # The keys are free again.
    assert await bench.broker.push(jobs[1:-1]) == {}
    assert len(await bench.claim(1_000)) == 2 * BATCH + 2


@pytest.mark.parametrize("name", ["push_plain", "push"])
async def test_a_server_that_refuses_a_later_piece_keeps_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    jobs = [prepared(priority=0 if name == "push_plain" else n % 2) for n in range(MANY)]
    runs = fail_script(monkeypatch, name, 3, StatementFailed("full", passing=True))
    with pytest.raises(StatementFailed):
        await bench.broker.push(jobs)
    assert len(runs) == 3
    assert not await bench.broker.get([job.id for job in jobs])
    assert await bench.broker.counts() == {}


@pytest.mark.parametrize("name", ["push_plain", "push"])
async def test_a_piece_whose_answer_is_lost_is_stored_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    jobs = [prepared(priority=0 if name == "push_plain" else n % 2) for n in range(MANY)]
    runs = fail_script(monkeypatch, name, 2, BrokerUnavailable("lost"))
    await bench.broker.push(jobs)
    # What is repeated goes the way of jobs that may be there.
    assert len(runs) == {"push_plain": -(-MANY // MOVED), "push": -(-MANY // BATCH) + 1}[name]
    wanted = [job.id for job in sorted(jobs, key=lambda job: -job.priority)]
    assert [claim.id for claim in await bench.claim(1_000)] == wanted


async def test_jobs_of_a_claim_that_was_lost_are_given_piece_by_piece(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [prepared() for _ in range(2 * MOVED)]
    await bench.push(*jobs)
    with monkeypatch.context() as patched:
        lose(patched, script("jobs.claim"))
        with pytest.raises(BrokerUnavailable):
            await bench.claim(1_000)
    first: Sequence[Claim] = await bench.claim(1_000)
    rest = await bench.claim(1_000)
    assert [one.id for one in [*first, *rest]] == [job.id for job in jobs]
    assert not await bench.claim(1_000)


async def test_jobs_that_are_no_longer_expected_go_little_by_little(
    bench: Bench, server: RedisServer
) -> None:
    name = f"{link_of(bench).tag}:expected"
    [job] = [prepared()]
    with closing(server.client()) as client:
        client.zadd(name, {f"{n:016}": 1.0 for n in range(5_000)})
        await bench.broker.watch([job.id])
        assert client.zcard(name) == 5_000 + 1 - 12

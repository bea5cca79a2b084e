"""Arguments, meta, failures and results of many kilobytes are kept exactly, and hold up nobody."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from chancy.attempt.failure import Failure
from chancy.attempt.settlement import Note
from chancy.broker.values import JobFilter
from chancy.job.unique import UniqueKey
from chancy.plugins.redis import RedisBroker, records
from chancy.plugins.redis.jobs import meta as folding
from chancy.plugins.redis.transport.chunks import BATCH
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.brokers import opened
from tests.plugins.redis.jobs.script_times import MOST_US, timed
from tests.plugins.redis.trips import Calls, Send, around
from tests.support.redis_fixtures import RedisServer

Measured = tuple[RedisServer, RedisBroker, Bench]

#: More than a piece, of the texts that follow.
JOBS = 16
SOME = 0.25


def text(letter: str, size: int = 60_000) -> str:
    # Lines end in an escape: what looks for ends of lines must not take these for one.
    return json.dumps({letter: f"{letter}\n" * (size // 3)})


@pytest.fixture
async def measured(own_redis: Callable[..., RedisServer]) -> AsyncIterator[Measured]:
    """A server of its own, whose scripts nobody else's delay."""
    server = own_redis()
    async with opened(server.url) as (broker, bench):
        yield server, broker, bench


async def test_large_metas_failures_and_results_are_pieces(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, broker, bench = measured
    # Every other one is small: of these the whole record is written.
    jobs = [prepared(arguments=text("a") if n % 2 else "{}") for n in range(JOBS)]
    ids = [job.id for job in jobs]
    broke = Failure.named("shop.errors.Broke", "it broke " * 1_000)
    with timed(server, monkeypatch) as times:
        await broker.push(jobs)
        claims = await bench.claim(JOBS)
        for meta in (text("m"), '{"half": true}', text("n")):
            notes = [Note(one.id, one.lease, meta) for one in claims]
            assert await broker.update_meta(notes) == frozenset()
        again = [
            settlement(one, State.SCHEDULED)._replace(delay_s=-1.0, failure=broke) for one in claims
        ]
        assert await broker.settle(again) == frozenset()
        assert (await broker.promote(JOBS)).promoted == JOBS
        claims = await bench.claim(JOBS)
        assert [(one.id, one.attempt) for one in claims] == [(id, 2) for id in ids]
        back = [settlement(one, State.PENDING)._replace(refund=True) for one in claims]
        assert await broker.settle(back) == frozenset()
        claims = await bench.claim(JOBS)
        ends = [settlement(one, State.SUCCEEDED)._replace(result=text("r")) for one in claims]
        assert await broker.settle(ends) == frozenset()
        found = await broker.get(ids)
    meta = json.loads(text("m")) | {"half": True} | json.loads(text("n"))
    for job in jobs:
        read = found[job.id]
        assert (read.state, read.attempt, read.worker_id) == (State.SUCCEEDED, 2, bench.worker_id)
        assert read.arguments == json.loads(job.arguments)
        assert (read.meta, read.result) == (meta, json.loads(text("r")))
        assert [one["attempt"] for one in read.errors] == [1]
    assert len(times.check(interrupted=SOME)["update_meta"]) > 3


async def test_large_arguments_that_others_replace_are_not_read(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, broker, bench = measured
    meta, func = '{"m": 1}', "shop." + "f" * 200
    keys = [UniqueKey(uuid.uuid4().bytes, "replace") for _ in range(3 * BATCH)]
    first = [prepared(arguments=text("a"), meta=meta, func=func, unique=key) for key in keys]
    await broker.push(first)
    with timed(server, monkeypatch) as times:
        found = await broker.push([prepared(arguments='{"n": 1}', unique=key) for key in keys])
    assert list(found.values()) == [job.id for job in first]
    claims = await bench.claim(len(keys))
    assert {(one.func, one.arguments, one.meta) for one in claims} == {(func, '{"n": 1}', meta)}
    # The others may have been interrupted.
    assert times.took_us()["push"][0] < MOST_US, "as if they were small"


async def test_a_few_jobs_with_large_metas_are_replaced_at_a_time(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, broker, bench = measured
    keys = [UniqueKey(uuid.uuid4().bytes, "replace") for _ in range(JOBS)]
    first = [prepared(meta=text("m"), unique=key) for key in keys]
    await broker.push(first)
    replaced: list[int] = []

    async def noted(calls: Calls, send: Send) -> list[Any]:
        [answer] = await send()
        if calls[0].script == "jobs.push" and answer != b"large":
            replaced.append(len(answer[0]) // 2)
        return [answer]

    with monkeypatch.context() as patched:
        around(patched, noted)
        found = await broker.push([prepared(arguments='{"n": 1}', unique=key) for key in keys])
    assert list(found.values()) == [job.id for job in first]
    # Of 60 kB each.
    assert sum(replaced) == JOBS
    assert max(replaced) <= 3
    for one in await bench.claim(JOBS):
        assert (one.arguments, one.meta) == ('{"n": 1}', text("m"))


async def test_jobs_that_are_not_wanted_are_not_read(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, broker, bench = measured
    jobs = [prepared(arguments=text("a")) for _ in range(4 * JOBS)]
    [other, named] = [prepared(queue="other"), prepared(func="shop." + "f" * 400)]
    await bench.push(other, *jobs, named)
    answers: list[int] = []

    async def noted(calls: Calls, send: Send) -> list[Any]:
        [answer] = await send()
        if calls[0].script == "jobs.find":
            answers.append(sum(map(len, answer)))
        return [answer]

    around(monkeypatch, noted)
    assert [one.id for one in await broker.find(JobFilter(queue="other"))] == [other.id]
    assert [one.id for one in await broker.find(JobFilter(func=named.func))] == [named.id]
    assert len(answers) == 2
    found = await broker.find(JobFilter(queue="default", func=jobs[0].func, limit=1_000))
    assert [one.id for one in found] == sorted((one.id for one in jobs), reverse=True)
    # The fourth large one exceeds what a script reads.
    assert max(answers) < 5 * 60_000


async def record_of(bench: Bench, id: bytes) -> bytes:
    assert isinstance(bench.broker, RedisBroker)
    [record] = await bench.broker.client.run("fetch", 0, 0, id)
    assert isinstance(record, bytes)
    return record


async def test_a_job_that_is_put_off_200_times_stays_small(bench: Bench) -> None:
    job = prepared(meta='{"workflow": {"step": "a"}}')
    await bench.broker.push([job])
    most = 0
    for n in range(200):
        [claim] = await bench.claim(1)
        patch = json.dumps({"snoozes": n + 1, "ä": "ö"})
        put_off = settlement(claim, State.PENDING)._replace(refund=True, meta=patch)
        assert await bench.broker.settle([put_off]) == frozenset()
        meta = records.meta_of(await record_of(bench, job.id.bytes))
        most = max(most, meta.count(b"\n"))
    assert most == folding.MOST
    [claim] = await bench.claim(1)
    assert claim.meta is not None
    assert json.loads(claim.meta) == {"workflow": {"step": "a"}, "snoozes": 200, "ä": "ö"}


async def test_checkpoints_of_many_kilobytes_are_kept_once(bench: Bench) -> None:
    """Each write has all checkpoints of the attempt."""
    [claim] = await bench.running(prepared(meta='{"workflow": {"step": "a"}}'))
    kept = dict[str, str]()
    for n in range(20):
        kept[str(n)] = "x" * 20_000
        text = json.dumps({"checkpoints": kept})
        note = Note(claim.id, claim.lease, text)
        assert await bench.broker.update_meta([note]) == frozenset()
        meta = records.meta_of(await record_of(bench, claim.id.bytes))
        assert len(meta) < 2 * len(text) + folding.MOST_BYTES
    found = await bench.broker.get([claim.id])
    assert found[claim.id].meta == {"workflow": {"step": "a"}, "checkpoints": kept}


async def test_progress_reported_meanwhile_is_not_lost(bench: Bench) -> None:
    await bench.broker.push([prepared(meta='{"a": 1}')])
    [claim] = await bench.claim(1)
    assert isinstance(bench.broker, RedisBroker)
    link, before = bench.broker.client, await record_of(bench, claim.id.bytes)
    await bench.broker.update_meta([Note(claim.id, claim.lease, '{"b": 2}')])
    await folding.fold(link, claim.id, claim.lease, before)
    await folding.fold(link, claim.id, uuid.uuid4(), await record_of(bench, claim.id.bytes))
    meta = records.meta_of(await record_of(bench, claim.id.bytes))
    assert meta == b'{"a": 1}\n{"b": 2}'
    await folding.fold(link, claim.id, claim.lease, await record_of(bench, claim.id.bytes))
    meta = records.meta_of(await record_of(bench, claim.id.bytes))
    assert json.loads(meta) == {"a": 1, "b": 2}

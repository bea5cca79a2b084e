"""A push whose answer is lost is repeated, and runs once; how much is kept of jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chancy.broker.values import JobFilter, PreparedJob
from chancy.errors import BrokerUnavailable
from chancy.plugins.redis import RedisBroker
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.brokers import opened
from tests.plugins.redis.trips import Calls, Send, around
from tests.support.waiting import eventually

MANY = 200
PUSHES = ("jobs.push_one", "jobs.push_plain", "jobs.push")


@pytest.fixture(params=[False], ids=["not kept"])
async def bench(request: pytest.FixtureRequest, redis_url: str) -> AsyncIterator[Bench]:
    queue = Queue(name="default", keep_finished=request.param)
    async with opened(redis_url, queue) as (_, bench):
        yield bench


async def key_names(bench: Bench, pattern: str) -> list[bytes]:
    assert isinstance(bench.broker, RedisBroker)
    link = bench.broker.client
    found: list[bytes] = await link.command("KEYS", f"{link.tag}:{pattern}")
    return found


def lose(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, end: State, answers: int
) -> tuple[list[str], list[Any]]:
    """Lose answers of pushes, and have a worker run what they have stored before they are
    repeated; gives the scripts that push, and the ids of what was run."""
    assert isinstance(bench.broker, RedisBroker)
    link, pushed, ran = bench.broker.client, list[str](), list[Any]()

    async def losing(calls: Calls, send: Send) -> list[Any]:
        replies = await send()
        if calls[0].script in PUSHES:
            pushed.append(calls[0].script)
            if len(pushed) <= answers:
                claims = await bench.claim()
                ran.extend(claim.id for claim in claims)
                await bench.settle(*(settlement(claim, end) for claim in claims))
                await Upkeep(link).turn()
                raise BrokerUnavailable("the answer is lost")
        return replies

    around(monkeypatch, losing)
    return pushed, ran


def different() -> list[PreparedJob]:
    return [prepared(priority=n % 3, delay_s=-1.0 if n % 2 else None) for n in range(MANY)]


@pytest.mark.parametrize("bench", [False, True], ids=["not kept", "kept"], indirect=True)
@pytest.mark.parametrize(("end", "answers"), [(State.SUCCEEDED, 1), (State.CANCELLED, 3)])
async def test_pushed_jobs_that_ran_are_not_pushed_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, end: State, answers: int
) -> None:
    pushed, ran = lose(monkeypatch, bench, end, answers)
    alike = [prepared() for _ in range(MANY)]
    for jobs in ([prepared()], alike, different()):
        ran.clear()
        pushed.clear()
        assert await bench.broker.push(jobs) == {}
        assert len(pushed) > answers
        claims = await bench.claim(len(jobs))
        ran += [claim.id for claim in claims]
        await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
        assert sorted(ran) == sorted(job.id for job in jobs)
    assert await bench.broker.counts() == {}


@pytest.mark.parametrize(
    ("kept", "end"),
    [
        ({"keep_finished": 0}, State.SUCCEEDED),
        ({"keep_finished_s": 1e-6}, State.SUCCEEDED),
        ({"keep_failed_s": 1e-6}, State.FAILED),
    ],
)
async def test_jobs_that_are_not_kept_are_not_pushed_twice(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, kept: dict[str, Any], end: State
) -> None:
    """It gave way to others, or is over its age."""
    async with opened(redis_url, **kept) as (broker, bench):
        _, ran = lose(monkeypatch, bench, end, 1)
        job = prepared()
        await broker.push([job])
        assert await bench.claim() == []
        assert ran == [job.id]
        assert await broker.get(ran) == {}
        assert await key_names(bench, "j:*") == [], "nor anybody finds it who looks into the server"


async def test_old_pushes_leave_no_mark(bench: Bench) -> None:
    old = [prepared() for _ in range(3)]
    claims = await bench.running(*old)
    assert isinstance(bench.broker, RedisBroker)
    link = bench.broker.client
    for job in old:
        # When it was pushed, by the layout of a record.
        await link.command("SETRANGE", f"{link.tag}:j:".encode() + job.id.bytes, 79, bytes(8))
    await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
    assert await key_names(bench, "gone:*") == []
    claims = await bench.running(prepared())
    await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
    [mark] = await key_names(bench, "gone:*")
    assert 0 < await link.command("PTTL", mark) <= 40_000


async def test_pushing_an_id_again_takes_effect(bench: Bench) -> None:
    """As it was: only a push that is repeated looks at what has gone."""
    job = prepared()
    for _ in range(2):
        claims = await bench.running(job)
        assert [claim.id for claim in claims] == [job.id]
        await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))


@pytest.mark.row("F18")
async def test_finished_jobs_are_kept_up_to_a_number_and_an_age(redis_url: str) -> None:
    kept = {"keep_finished": 10, "keep_failed": 5}
    async with (
        opened(redis_url, **kept) as (broker, bench),
        opened(redis_url, **kept, keep_failed_s=0.001) as (short, _),
    ):
        ids = []
        for state in (State.SUCCEEDED, State.FAILED):
            claims = await bench.running(*(prepared() for _ in range(30)))
            await bench.settle(*(settlement(claim, state) for claim in claims))
            ids.append([claim.id for claim in claims])
        assert len(await broker.get(ids[0])) == 10
        assert len(await broker.get(ids[1])) == 5
        # Those over their age are gone for whoever looks, before anybody has cleared them away.
        for look in (short.get, short.watch):

            async def gone(look: Any = look) -> bool:
                return not await look(ids[1])

            await eventually(gone)
            assert len(await look(ids[0])) == 10
        assert {job.id for job in await short.find(JobFilter())} == set(await broker.get(ids[0]))
        assert len(await broker.find(JobFilter())) == 15
        link = short.client
        assert await Upkeep(link).turn() == 5
        # The next turn is somebody else's.
        assert await Upkeep(link).turn() == 0
        assert len(await broker.client.command("KEYS", f"{broker.tag}:j:*")) == 10


async def test_a_finished_run_leaves_no_state_behind(redis_url: str) -> None:
    queue = Queue(name="default", keep_finished=False)
    async with opened(redis_url, queue) as (broker, bench):
        claims = await bench.running(*(prepared() for _ in range(20)))
        await bench.settle(*(settlement(claim, State.SUCCEEDED) for claim in claims))
        await broker.orphans(heartbeat_age_s=0.0, limit=10)
        left = {key.decode() for key in await broker.client.command("KEYS", f"{broker.tag}*")}
        tag = broker.tag
        # That they ran is known for half a minute to a push that is repeated; the worker is woken
        # until others claim.
        passing = tuple(f"{tag}:{name}:" for name in ("told", "gone", "idle"))
        left -= {key for key in left if key.startswith(passing)}
        assert left == {f"{tag}:{name}" for name in ("queues", "brief", "position")}


async def test_counting_a_queue_reads_no_jobs(redis_url: str) -> None:
    async with opened(redis_url) as (broker, bench):
        await bench.running(*(prepared() for _ in range(5)))
        await bench.push(*(prepared() for _ in range(5)))
        await bench.push(*(prepared(delay_s=60.0) for _ in range(5)))
        assert await broker.client.run("listed", "default", 0) == [15, 0, 0, [], [], []]
        kept, done, dead, *lists = await broker.client.run("listed", "default", 2)
        assert (kept, done, dead) == (15, 0, 0)
        assert [len(one) for one in lists] == [4, 4, 4]

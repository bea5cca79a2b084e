"""A push whose answer is lost is repeated, and runs once also where nothing is kept of its job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from chancy.broker.values import PreparedJob
from chancy.errors import BrokerUnavailable
from chancy.plugins.redis import RedisBroker
from chancy.plugins.redis.maintenance.upkeep import Upkeep
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.queue.queue import Queue
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.brokers import opened

MANY = 200
PUSHES = ("push_one", "push_plain", "push")


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
    run, pushed, ran = ShardClient.run, list[str](), list[Any]()

    async def losing(self: ShardClient, name: str, *args: Any) -> Any:
        answer = await run(self, name, *args)
        if name in PUSHES:
            pushed.append(name)
            if len(pushed) <= answers:
                claims = await bench.claim()
                ran.extend(claim.id for claim in claims)
                await bench.settle(*(settlement(claim, end) for claim in claims))
                await Upkeep(self).turn()
                raise BrokerUnavailable("the answer is lost")
        return answer

    monkeypatch.setattr(ShardClient, "run", losing)
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

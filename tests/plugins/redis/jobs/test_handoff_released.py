"""Claims that nobody fetches, while the server answers badly: given back, and run by one worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from chancy.broker.notices import Subscription
from chancy.errors import BrokerError, BrokerUnavailable, StatementFailed
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.support.waiting import eventually

Run = Callable[..., Awaitable[object]]


class Failing:
    """Scripts of a name fail, before they are run or after.

    :param most: how many times.
    """

    def __init__(
        self, run: Run, script: str, error: BrokerError, *, after: bool, most: int = 1_000_000
    ) -> None:
        self.failures = 0
        self._run, self._script, self._error = run, script, error
        self._after, self._most = after, most

    async def run(self, name: str, *args: str | bytes | float) -> object:
        fails = name == self._script and self.failures < self._most
        if fails:
            self.failures += 1
            if not self._after:
                raise self._error
        answer = await self._run(name, *args)
        if fails:
            raise self._error
        return answer


async def listen(broker: RedisBroker) -> tuple[Subscription, asyncio.Task[object]]:
    """As a worker does that may wait for what is pushed."""
    subscription = await broker.subscribe()
    listening = asyncio.create_task(subscription.receive(60, lambda _: None))
    await asyncio.sleep(0)
    return subscription, listening


@pytest.fixture
async def listening(broker: RedisBroker, bench: Bench) -> AsyncIterator[None]:
    subscription, listening = await listen(broker)
    yield
    await subscription.close()
    await asyncio.wait([listening])


@pytest.mark.usefixtures("listening")
async def test_what_went_back_without_an_answer_is_run_by_one(
    bench: Bench, broker: RedisBroker, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(broker.client.run, "settle", BrokerUnavailable("lost"), after=True, most=1)
    assert await bench.claim() == []
    other_broker = RedisBroker(RedisSettings(url=redis_url))
    await other_broker.open()
    other = Bench(other_broker)
    await other.prepare()
    monkeypatch.setattr(broker.client, "run", failing.run)
    [job] = await other.push(prepared())
    assert await other.state(job) is State.RUNNING

    async def back() -> bool:
        return bool(failing.failures) and await other.state(job) is State.PENDING

    await eventually(back)
    [claim] = await other.claim()
    assert claim.id == job
    assert await bench.claim() == [], "it went to another"
    assert await other.settle(settlement(claim, State.SUCCEEDED)) == frozenset()
    await other_broker.close()


@pytest.mark.usefixtures("listening")
async def test_giving_back_goes_on_until_the_server_answers(
    bench: Bench, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(broker.client.run, "settle", BrokerUnavailable("away"), after=False, most=3)
    assert await bench.claim() == []
    monkeypatch.setattr(broker.client, "run", failing.run)
    [job] = await bench.push(prepared())
    await eventually(lambda: failing.failures == 3)

    async def back() -> bool:
        return await bench.state(job) is State.PENDING

    await eventually(back)
    found = await bench.job(job)
    assert (found.attempt, found.crashes) == (0, 0)


async def test_a_broker_that_closes_gives_nothing_back_any_more(
    bench: Bench, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it still has is rescued when its worker is taken for dead."""
    subscription, listening = await listen(broker)
    failing = Failing(broker.client.run, "settle", BrokerUnavailable("away"), after=False)
    assert await bench.claim() == []
    monkeypatch.setattr(broker.client, "run", failing.run)
    [job] = await bench.push(prepared())
    await eventually(lambda: failing.failures >= 2)
    await broker.unregister(bench.worker_id)
    began = time.monotonic()
    await broker.close()
    assert time.monotonic() - began < 1.0
    assert not [one for one in asyncio.all_tasks() if "given back" in one.get_name()]
    await asyncio.wait([listening])
    await broker.open()
    assert [claim.id for claim in await broker.orphans(silent_s=60, limit=10)] == [job]
    await subscription.close()


@pytest.mark.usefixtures("listening")
async def test_a_worker_leaves_though_nothing_can_be_given_back(
    bench: Bench, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Failing(broker.client.run, "settle", BrokerUnavailable("away"), after=False)
    assert await bench.claim() == []
    [job] = await bench.push(prepared())
    monkeypatch.setattr(broker.client, "run", failing.run)
    async with asyncio.timeout(5):
        await broker.unregister(bench.worker_id)
    assert [claim.id for claim in await broker.orphans(silent_s=60, limit=10)] == [job]


@pytest.mark.parametrize(
    "error", [StatementFailed("full", passing=True), BrokerUnavailable("lost")], ids=repr
)
async def test_what_a_claim_has_when_it_fails_is_not_lost(
    bench: Bench, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, error: BrokerError
) -> None:
    """It takes two scripts, and the second one fails."""
    ids = await bench.push(*(prepared() for _ in range(300)))
    run, calls = broker.client.run, 0

    async def fail_second(name: str, *args: str | bytes | float) -> object:
        nonlocal calls
        calls += name == "claim"
        if name == "claim" and calls == 2:
            raise error
        return await run(name, *args)

    monkeypatch.setattr(broker.client, "run", fail_second)
    with pytest.raises(type(error)):
        await bench.claim(500)
    first = await bench.claim(500)
    second = await bench.claim(500)
    assert [claim.id for claim in (*first, *second)] == ids


async def test_what_a_failed_claim_had_goes_back_if_nobody_comes(
    bench: Bench, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await bench.push(*(prepared() for _ in range(300)))
    run, calls = broker.client.run, 0

    async def fail_second(name: str, *args: str | bytes | float) -> object:
        nonlocal calls
        calls += name == "claim"
        if name == "claim" and calls == 2:
            raise StatementFailed("full", passing=True)
        return await run(name, *args)

    monkeypatch.setattr(broker.client, "run", fail_second)
    with pytest.raises(StatementFailed):
        await bench.claim(500)

    async def back() -> bool:
        counts = (await broker.counts())["default"]
        return counts.pending == len(ids)

    await eventually(back)
    assert [claim.id for claim in await bench.claim(500)] == ids

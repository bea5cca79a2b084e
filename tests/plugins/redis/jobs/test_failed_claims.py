"""Claims of several scripts, of which a later one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from chancy.errors import BrokerError, BrokerUnavailable, StatementFailed
from chancy.plugins.redis import RedisBroker
from chancy.testing.conformance.bench import Bench, prepared


def fail_second(
    broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, fail: Callable[[], Awaitable[object]]
) -> None:
    run, calls = broker.client.run, 0

    async def run_or_fail(name: str, *args: str | bytes | float) -> object:
        nonlocal calls
        calls += name == "claim"
        if name == "claim" and calls == 2:
            return await fail()
        return await run(name, *args)

    monkeypatch.setattr(broker.client, "run", run_or_fail)


@pytest.mark.parametrize(
    "error", [StatementFailed("full", passing=True), BrokerUnavailable("lost")], ids=repr
)
async def test_a_claim_returns_what_it_has_when_a_later_script_fails(
    bench: Bench, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch, error: BrokerError
) -> None:
    ids = await bench.push(*(prepared() for _ in range(300)))

    async def fail() -> object:
        raise error

    fail_second(broker, monkeypatch, fail)
    first = await bench.claim(500)
    second = await bench.claim(500)
    assert [claim.id for claim in (*first, *second)] == ids
    assert len(first) < len(ids)


async def test_the_claims_of_a_cancelled_call_come_with_the_next_ones(
    bench: Bench, broker: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those above the limit of the next call are released."""
    ids = await bench.push(*(prepared() for _ in range(300)))
    reached = asyncio.Event()

    async def hang() -> object:
        reached.set()
        return await asyncio.Event().wait()

    fail_second(broker, monkeypatch, hang)
    call = asyncio.create_task(bench.claim(500))
    await reached.wait()
    assert (await broker.counts())["default"].running > 100
    call.cancel()
    await asyncio.wait([call])
    first = await bench.claim(100)
    counts = (await broker.counts())["default"]
    assert (counts.running, counts.pending) == (100, 200)
    second = await bench.claim(500)
    assert [claim.id for claim in (*first, *second)] == ids
    assert {claim.attempt for claim in second} == {1}

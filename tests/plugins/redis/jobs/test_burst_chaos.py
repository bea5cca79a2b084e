"""A hundred thousand jobs fail at once and are due again at one moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.brokers import opened
from tests.plugins.redis.jobs.script_times import timed
from tests.support.redis_fixtures import RedisServer

pytestmark = pytest.mark.chaos

JOBS = 100_000
BROKE = Failure.named("shop.errors.Broke", "it broke, and why is told at some length")


async def fail(bench: Bench, claims: Sequence[Claim]) -> None:
    """Have them due again at once."""
    again = [
        settlement(one, State.SCHEDULED)._replace(delay_s=0.01, failure=BROKE) for one in claims
    ]
    assert await bench.broker.settle(again) == frozenset()


async def test_no_script_takes_long_in_a_burst_of_retries(
    own_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_redis()
    async with opened(server.url, keep_failed=1_000) as (broker, bench):
        with timed(server, monkeypatch) as times:
            for _ in range(JOBS // 1_000):
                await broker.push([prepared() for _ in range(1_000)])
            for _ in range(JOBS // 1_000):
                await fail(bench, await bench.claim(1_000))
            assert (await broker.counts())["default"].scheduled == JOBS
            promoted = 0
            while promoted < JOBS:
                promoted += (await broker.promote(1_000)).promoted
                # As workers do meanwhile.
                if promoted < 5_000:
                    await fail(bench, await bench.claim(100))
            while claims := await bench.claim(1_000):
                ends = [settlement(one, State.FAILED)._replace(failure=BROKE) for one in claims]
                await broker.settle(ends)
        found = times.check()
        assert {"push_plain", "promote", "claim", "settle"} <= found.keys()
        assert len(found["settle"]) >= 2 * JOBS // 128

"""Twenty thousand jobs fail at once and are due again at one moment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest
import redis

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.plugins.redis.transport.scripts import Value
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.plugins.redis.jobs.brokers import opened
from tests.support.redis_fixtures import RedisServer

pytestmark = pytest.mark.chaos

JOBS = 20_000
#: The most jobs of a script, as it is described, by its name.
MOST = {"push_plain": 128, "claim": 128, "promote": 128, "settle": 64}
#: What a script is given, and the commands that it executes, for each job at the most.
WORK = 3
BROKE = Failure.named("shop.errors.Broke", "it broke, and why is told at some length")


async def fail(bench: Bench, claims: Sequence[Claim]) -> None:
    """Have them due again at once."""
    again = [
        settlement(one, State.SCHEDULED)._replace(delay_s=0.01, failure=BROKE) for one in claims
    ]
    assert await bench.broker.settle(again) == frozenset()


def executed(client: redis.Redis) -> int:
    """The number of commands that the server has executed, also within scripts."""
    told: Any = client.info("commandstats")
    return sum(one["calls"] for name, one in told.items() if name != "cmdstat_info")


@contextmanager
def counted(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Generator[Mapping[str, Sequence[int]]]:
    """The values that each run of a script is given and the commands that it executes, by the name
    of the script."""
    run, found = ShardClient.run, defaultdict[str, list[int]](list)

    async def noted(self: ShardClient, name: str, *args: Value) -> Any:
        before = executed(client)
        try:
            return await run(self, name, *args)
        finally:
            found[name].append(len(args) + executed(client) - before)

    with closing(server.client()) as client, monkeypatch.context() as patched:
        patched.setattr(ShardClient, "run", noted)
        yield found


async def test_no_script_does_much_at_once_in_a_burst_of_retries(
    own_redis: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = own_redis()
    async with opened(server.url, keep_failed=1_000) as (broker, bench):
        with counted(server, monkeypatch) as work:
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
    assert work.keys() >= MOST.keys()
    heavy = {name: max(work[name]) for name, most in MOST.items() if max(work[name]) > WORK * most}
    assert heavy == {}
    assert len(work["settle"]) >= 2 * JOBS // MOST["settle"]

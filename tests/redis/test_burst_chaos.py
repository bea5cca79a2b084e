"""A hundred thousand jobs fail at once and are due again at one moment."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import pytest

from chancy.attempt import Claim
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.plugins.redis.link import SCRIPTS
from chancy.states import State
from chancy.testing.conformance.bench import Bench, prepared, settlement
from tests.redis_fixtures import RedisServer

pytestmark = pytest.mark.chaos

logger = logging.getLogger(__name__)

JOBS = 100_000
#: No script holds up all others for longer, in microseconds.
MOST_US = 5_000
#: Scripts that took less than so many are not listed by the server.
LISTED_US = 500


def took_us(server: RedisServer) -> Mapping[str, Sequence[int]]:
    """How long the runs of each script took that the server has listed, the shortest first."""
    names = {script.digest.encode(): name for name, script in SCRIPTS.items()}
    found: dict[str, list[int]] = defaultdict(list)
    with closing(server.client()) as client:
        listed: Any = client.slowlog_get(100_000)
    for one in listed:
        words = one["command"].split(b" ", 2)
        if words[0] == b"EVALSHA" and words[1] in names:
            found[names[words[1]]].append(one["duration"])
    return {name: sorted(all_us) for name, all_us in found.items()}


async def fail(bench: Bench, claims: Sequence[Claim]) -> None:
    """Have them due again at once."""
    again = [settlement(one, State.SCHEDULED)._replace(delay_s=0.01) for one in claims]
    assert await bench.broker.settle(again) == frozenset()


async def test_no_script_takes_long_in_a_burst_of_retries(
    own_redis: Callable[..., RedisServer],
) -> None:
    server = own_redis(slowlog_log_slower_than=str(LISTED_US), slowlog_max_len="100000")
    broker = RedisBroker(RedisSettings(url=server.url))
    await broker.open()
    try:
        bench = Bench(broker)
        await bench.prepare()
        for _ in range(JOBS // 1_000):
            await broker.push([prepared() for _ in range(1_000)])
        for _ in range(JOBS // 1_000):
            await fail(bench, await bench.claim(1_000))
        assert (await broker.counts())["default"].scheduled == JOBS
        promoted = 0
        while promoted < JOBS:
            promoted += (await broker.promote(1_000)).promoted
            # As workers do meanwhile.
            await fail(bench, await bench.claim(100)) if promoted < 5_000 else await asyncio.sleep(
                0
            )
        claims = await bench.claim(1_000)
        assert len(claims) == 1_000
        await broker.settle([settlement(one, State.FAILED) for one in claims])
    finally:
        await broker.close()
    found = took_us(server)
    for name, all_us in found.items():
        middle, longest = all_us[len(all_us) // 2], all_us[-1]
        logger.info("%s: %d listed, median %d, longest %d us", name, len(all_us), middle, longest)
    assert {"promote", "claim", "settle"} <= found.keys()
    for name in ("promote", "claim", "settle"):
        # Others run on this machine too, and interrupt the server: one that was not interrupted.
        assert found[name][len(found[name]) // 4] < MOST_US, name

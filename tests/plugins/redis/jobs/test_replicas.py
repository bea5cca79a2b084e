"""Pushes that return once replicas have them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.testing.conformance.bench import Bench, prepared
from tests.plugins.redis.jobs.test_durability_chaos import follow, in_step
from tests.support.redis_fixtures import RedisServer
from tests.support.waiting import eventually

Start = Callable[..., RedisServer]


async def test_a_push_that_too_few_have_received_is_no_success(
    own_redis: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may last all the same, and is there once when it is pushed again."""
    monkeypatch.setattr("chancy.plugins.redis.jobs.push.PATIENCE_S", 0.3)
    primary = own_redis(**{"repl-diskless-sync-delay": "0"})
    broker = RedisBroker(RedisSettings(url=primary.url, timeout_s=1.0, replicas=1))
    await broker.open()
    try:
        bench = Bench(broker)
        await bench.prepare()
        calls = [[prepared()], [prepared() for _ in range(300)], [prepared(delay_s=60.0)]]
        for jobs in calls:
            with pytest.raises(BrokerUnavailable, match="0 of 1 replicas have received"):
                await broker.push(jobs)
        replica = own_redis()
        follow(replica, primary.port)
        await eventually(lambda: in_step(replica, primary))
        for jobs in calls:
            await broker.push(jobs)
            there = {job.id for job in jobs}
            assert (await broker.get(list(there))).keys() == there
        counts = (await broker.counts())["default"]
        assert (counts.pending, counts.scheduled) == (301, 1)
    finally:
        await broker.close()

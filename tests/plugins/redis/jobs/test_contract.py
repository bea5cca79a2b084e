"""The contract of brokers, held against Redis: on one server, and on a cluster in the long runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from chancy.broker.contract import Broker
from chancy.plugins.redis import RedisBroker, RedisSettings
from chancy.testing.conformance import BrokerContract


# All that differs on a cluster is how keys are reached.
@pytest.mark.parametrize("clustered", [False, pytest.param(True, marks=pytest.mark.chaos)])
class TestRedis(BrokerContract):
    @pytest.fixture
    async def brokers(
        self, request: pytest.FixtureRequest, clustered: bool
    ) -> AsyncIterator[tuple[Broker, Broker]]:
        url = request.getfixturevalue("redis_cluster" if clustered else "redis_url")
        settings = RedisSettings(url=url, cluster=clustered)
        first, second = RedisBroker(settings), RedisBroker(settings)
        for broker in (first, second):
            await broker.open()
        yield first, second
        for broker in (first, second):
            await broker.close()

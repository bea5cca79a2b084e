"""The contract of brokers, held against Redis: on a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from chancy.broker.contract import Broker
from chancy.plugins.redis import RedisSettings
from tests.plugins.redis.jobs.brokers import RedisContract

# All that differs from a single server is how its keys are reached, which the long runs look at.
pytestmark = pytest.mark.chaos


class TestCluster(RedisContract):
    @pytest.fixture
    async def brokers(self, redis_cluster: str) -> AsyncIterator[tuple[Broker, Broker]]:
        async for pair in self.opened(RedisSettings(url=redis_cluster, cluster=True)):
            yield pair

"""The contract of brokers, held against Redis: on one server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from chancy.broker.contract import Broker
from chancy.plugins.redis import RedisSettings
from tests.plugins.redis.jobs.brokers import RedisContract


class TestAlone(RedisContract):
    @pytest.fixture
    async def brokers(self, redis_url: str) -> AsyncIterator[tuple[Broker, Broker]]:
        async for pair in self.opened(RedisSettings(url=redis_url)):
            yield pair

"""What the tests of the broker on Redis share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from chancy.broker.contract import Broker
from chancy.plugins.redis import RedisSettings
from chancy.plugins.redis.jobs.broker import RedisBroker
from chancy.testing.conformance import BrokerContract


class RedisContract(BrokerContract):
    """The contract of brokers, held against Redis."""

    async def opened(self, settings: RedisSettings) -> AsyncIterator[tuple[Broker, Broker]]:
        async with AsyncExitStack() as stack:
            first, second = RedisBroker(settings), RedisBroker(settings)
            for broker in (first, second):
                stack.push_async_callback(broker.close)
                await broker.open()
            yield first, second

"""The contract of brokers, held against every broker there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from chancy.broker import Broker
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers import Name as DriverName
from chancy.testing.conformance import BrokerContract
from chancy.testing.memory import MemoryBroker


class TestMemory(BrokerContract):
    @pytest.fixture
    async def brokers(self) -> AsyncIterator[tuple[Broker, Broker]]:
        first = MemoryBroker()
        second = MemoryBroker(store=first.store)
        yield first, second
        await second.close()
        await first.close()


class PostgresContract(BrokerContract):
    driver: DriverName

    @pytest.fixture
    async def brokers(self, dsn: str) -> AsyncIterator[tuple[Broker, Broker]]:
        async with AsyncExitStack() as opened:
            first, second = (
                PostgresBroker(dsn, schema="chancy", driver=self.driver) for _ in range(2)
            )
            for broker in (first, second):
                opened.push_async_callback(broker.close)
                await broker.open()
            yield first, second


class TestAsyncpg(PostgresContract):
    driver = "asyncpg"


class TestPsycopg(PostgresContract):
    driver = "psycopg"

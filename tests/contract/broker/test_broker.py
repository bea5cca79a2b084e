"""The contract of brokers, held against every broker there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import asyncpg
import psycopg
import pytest

from chancy.broker.contract import Broker
from chancy.broker.notices import Notice, NoticeKind
from chancy.postgres.broker import PostgresBroker
from chancy.states import State
from chancy.testing.conformance import BrokerContract
from chancy.testing.conformance.bench import Bench, prepared, settlement
from chancy.testing.conformance.uniqueness import keyed
from chancy.testing.memory import MemoryBroker


class StoredContract(BrokerContract):
    """What the broker in memory has in common with that of Postgres."""

    async def test_a_push_repeated_within_its_period_stores_no_second_job(
        self, bench: Bench
    ) -> None:
        job = keyed(period_s=3600.0)
        [claim] = await bench.running(job)
        await bench.settle(settlement(claim, State.SUCCEEDED))
        assert await bench.broker.push([job]) == {}
        assert await bench.state(job.id) is State.SUCCEEDED
        assert await bench.claim() == []


class TestMemory(StoredContract):
    @pytest.fixture
    async def brokers(self) -> AsyncIterator[tuple[Broker, Broker]]:
        first = MemoryBroker()
        second = MemoryBroker(store=first.store)
        yield first, second
        await second.close()
        await first.close()


class TestPostgres(StoredContract):
    """By asyncpg; tests/integration/drivers holds what differs by psycopg."""

    @pytest.fixture
    async def brokers(self, dsn: str) -> AsyncIterator[tuple[Broker, Broker]]:
        async with AsyncExitStack() as opened:
            first, second = (PostgresBroker(dsn, driver="asyncpg") for _ in range(2))
            for broker in (first, second):
                opened.push_async_callback(broker.close)
                await broker.open()
            yield first, second

    async def test_a_push_is_part_of_a_transaction_of_ours(self, bench: Bench) -> None:
        broker = bench.broker
        assert isinstance(broker, PostgresBroker)
        kept, lost = prepared(), prepared()
        async with broker.transaction() as transaction:
            await broker.push([kept], within=transaction)
            assert await broker.get([kept.id]) == {}
        with suppress(ZeroDivisionError):
            async with broker.transaction() as transaction:
                await broker.push([lost], within=transaction)
                raise ZeroDivisionError
        assert set(await broker.get([kept.id, lost.id])) == {kept.id}

    async def test_a_push_is_part_of_a_transaction_of_psycopg(self, bench: Bench, dsn: str) -> None:
        kept, lost = prepared(), prepared()
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await bench.broker.push([kept], within=connection)
            assert await bench.broker.get([kept.id]) == {}
            await connection.commit()
            await bench.broker.push([lost], within=connection)
            await connection.rollback()
        with psycopg.connect(dsn) as sync_connection:
            await bench.broker.push([lost], within=sync_connection)
            sync_connection.rollback()
        assert set(await bench.broker.get([kept.id, lost.id])) == {kept.id}

    async def test_a_push_is_part_of_a_transaction_of_asyncpg(self, bench: Bench, dsn: str) -> None:
        kept, lost = prepared(), prepared()
        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                await bench.broker.push([kept], within=connection)
                assert await bench.broker.get([kept.id]) == {}
            transaction = connection.transaction()
            await transaction.start()
            await bench.broker.push([lost], within=connection)
            await transaction.rollback()
        finally:
            await connection.close()
        assert set(await bench.broker.get([kept.id, lost.id])) == {kept.id}

    async def test_garbage_on_the_channel_is_ignored(
        self, bench: Bench, brokers: tuple[Broker, Broker], dsn: str
    ) -> None:
        heard = await brokers[1].subscribe()
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                for payload in ("", "w", "w:" + "x" * 300, "z:default", "{}", "\x1b[31m", "w:ok"):
                    connection.execute("select pg_notify(chancy.channel(), %s)", [payload])
            notices = await heard.probe(30.0)
            assert notices == [Notice(NoticeKind.WAKE, "ok")]
        finally:
            await heard.close()

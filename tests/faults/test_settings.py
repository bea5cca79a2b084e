"""Settings of the server that others choose, and counters that have come far."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from chancy import Chancy, State, StatementFailed
from chancy.broker.contract import Broker
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.connections.heartbeat import Register
from chancy.postgres.drivers import Name
from chancy.postgres.statements import Statements
from chancy.testing.conformance import BrokerContract
from tests.faults import jobs, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.support.locks import BLOCKED
from tests.support.sql import ask, close_sessions
from tests.support.waiting import eventually

#: Where positions begin that no float of JSON holds, and soon the server could not.
FAR = 2**63 - 10**6


@asynccontextmanager
async def two_brokers(dsn: str, driver: Name) -> AsyncGenerator[tuple[Broker, Broker]]:
    first, second = PostgresBroker(dsn, driver=driver), PostgresBroker(dsn, driver=driver)
    await first.open()
    await second.open()
    yield first, second
    await second.close()
    await first.close()


def isolate(dsn: str) -> None:
    """Make every new session of the database serializable by default."""
    database = dsn.rpartition("/")[2]
    ask(dsn, f"alter database {database} set default_transaction_isolation = 'serializable'")
    close_sessions(dsn)
    assert ask(dsn, "show transaction_isolation") == [("serializable",)]


def advance(dsn: str, position: int) -> None:
    """Let the positions begin there."""
    ask(dsn, "select setval('chancy.positions', %s)", [position])


@pytest.mark.chaos
class TestContractUnderOtherSettings(BrokerContract):
    """The whole contract with the other driver, on a server whose transactions are stricter than we
    ask for, and near the last position."""

    @pytest.fixture
    async def brokers(self, dsn: str) -> AsyncIterator[tuple[Broker, Broker]]:
        isolate(dsn)
        advance(dsn, FAR)
        async with two_brokers(dsn, "psycopg") as opened:
            yield opened


async def test_a_heartbeat_meets_no_serialization_failure(dsn: str) -> None:
    """Its session has the isolation level of the server, and the worker announces its queues."""
    isolate(dsn)
    worker = uuid.uuid4()
    values = {"id": worker, "host": "here", "pid": 1}
    with psycopg.connect(dsn) as session:
        session.execute(
            "insert into chancy.workers (id, host, pid) values (%(id)s, %(host)s, %(pid)s)", values
        )
        session.commit()
        session.execute("update chancy.workers set queues = '{q}' where id = %(id)s", values)
        register = Register(dsn, Statements("chancy"))
        try:
            beat = asyncio.create_task(asyncio.to_thread(register.beat, worker, 0.0))
            await eventually(lambda: ask(dsn, f"select 1 from pg_stat_activity where {BLOCKED}"))
            session.commit()
            assert await beat
        finally:
            register.close()


async def test_positions_that_are_used_up_refuse_the_push_and_nothing_else(
    dsn: str, book: Book, start_worker: StartWorker
) -> None:
    advance(dsn, 2**63 - 2)
    async with Chancy(dsn) as chancy:
        last = await chancy.push(jobs.work.job(book=str(book), number=1))
        with pytest.raises(StatementFailed, match="2200H"):
            await chancy.push(jobs.work.job(book=str(book), number=2))
        worker = start_worker(dsn, heartbeat_timeout_s=30.0)
        assert (await last.wait(timeout_s=60.0)).state is State.SUCCEEDED
    worker.stop()
    assert tables.states(dsn) == {State.SUCCEEDED: 1}

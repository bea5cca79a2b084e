"""Both drivers, and sessions of each on the test's own database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from chancy.postgres.drivers import Name, driver
from chancy.postgres.drivers.base import Connection, Driver

#: What a busy machine may add, in seconds: less than the ten that psycopg waits for a server that
#: has been asked to cancel a statement.
SLACK_S = 8.0


@pytest.fixture(params=["asyncpg", "psycopg"])
def chosen(request: pytest.FixtureRequest) -> Driver:
    name: Name = request.param
    return driver(name)


@pytest.fixture
def empty_dsn(dsn: str) -> str:
    """Sessions do not care for tables, and databases with tables are used again."""
    return dsn


@pytest.fixture
async def session(chosen: Driver, empty_dsn: str) -> AsyncIterator[Connection]:
    connection = await chosen.connect(empty_dsn, application_name="test session")
    yield connection
    await connection.close()


@pytest.fixture
async def other(chosen: Driver, empty_dsn: str) -> AsyncIterator[Connection]:
    connection = await chosen.connect(empty_dsn, application_name="other session")
    yield connection
    await connection.close()


async def run(session: Connection, sql: str) -> None:
    """A statement as a coroutine, for a task of its own."""
    await session.fetch(sql)


async def is_running(other: Connection, pid: int) -> bool:
    """Whether the server's process is at work on a statement."""
    rows = await other.fetch(
        "select from pg_stat_activity where pid = $1 and state = 'active'", pid
    )
    return len(rows) == 1

"""A connection that is opened on first use and replaced when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection, Driver, Row


class Fetch(Protocol):
    """Runs one statement on some session."""

    async def __call__(
        self, sql: str, *params: object, deadline_s: float = ...
    ) -> Sequence[Row]: ...


class DedicatedSession:
    """One session of the server for one kind of work, shared by the tasks that do it.

    A worker has one for each kind of its own work, so that neither a slow caller nor a pool that
    jobs have exhausted can block its claims and settlements.

    :param dsn: called when a session is opened.
    """

    def __init__(self, driver: Driver, dsn: Callable[[], str], *, application_name: str) -> None:
        self._driver = driver
        self._dsn = dsn
        self._application_name = application_name
        self._lock = asyncio.Lock()
        self._connection: Connection | None = None
        #: Number of sessions opened so far. A new one may be on another server.
        self.generation = 0

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        """Run one statement; see `Connection.fetch`."""
        async with self._lock:
            connection = self._connection
            if connection is None or connection.closed:
                connection = await self._connect()
            return await connection.fetch(sql, *params, deadline_s=deadline_s)

    async def ready(self) -> int:
        """Open a session if there is none; returns the `generation`."""
        async with self._lock:
            if self._connection is None or self._connection.closed:
                await self._connect()
            return self.generation

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """Open a transaction on the session; other tasks wait until it has ended."""
        async with self._lock:
            connection = self._connection
            if connection is None or connection.closed:
                connection = await self._connect()
            async with connection.transaction():
                yield connection

    async def _connect(self) -> Connection:
        self._connection = await self._driver.connect(
            self._dsn(), application_name=self._application_name
        )
        self.generation += 1
        return self._connection

    async def close(self) -> None:
        """Close the session. The next statement opens a new one, in any event loop."""
        connection, self._connection = self._connection, None
        # A lock that a task has waited for stays bound to its event loop.
        self._lock = asyncio.Lock()
        if connection is not None:
            with suppress(BrokerUnavailable):
                await connection.close()

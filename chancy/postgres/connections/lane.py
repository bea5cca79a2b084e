"""One kind of a worker's work, one statement at a time, on the sessions of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection, Row
from chancy.postgres.drivers.pool import SessionPool


class Fetch(Protocol):
    """Runs one statement on some session."""

    async def __call__(
        self, sql: str, *params: object, deadline_s: float = ...
    ) -> Sequence[Row]: ...


class Lane:
    """Runs the statements of one kind of work, one after the other.

    A worker has one lane for each kind of its own work, so that neither a slow caller nor callers
    that have exhausted their sessions can block its claims and settlements. An idle worker uses one
    session for all of them.

    :param pool: returns the pool, and creates it if there is none.
    :param wait_s: see `SessionPool.take`.
    """

    def __init__(self, pool: Callable[[], SessionPool], *, wait_s: float = 0.0) -> None:
        self._pool = pool
        self._wait_s = wait_s
        self._lock = asyncio.Lock()
        #: The highest number of a session that was used. A new session may be on another server.
        self.generation = 0

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        """Run one statement; see `Connection.fetch`."""
        async with self._lock:
            pool = self._pool()
            session = await self._take(pool)
            try:
                return await session.fetch(sql, *params, deadline_s=deadline_s)
            finally:
                pool.put(session)

    async def ready(self) -> int:
        """Make sure that there is a session; returns the `generation`."""
        async with self._lock:
            pool = self._pool()
            pool.put(await self._take(pool))
            return self.generation

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """Open a transaction; other tasks of the lane wait until it has ended."""
        async with self._lock:
            pool = self._pool()
            session = await self._take(pool)
            try:
                async with session.transaction():
                    yield session
            finally:
                pool.put(session)

    async def _take(self, pool: SessionPool) -> Connection:
        session = await pool.take(self._wait_s)
        self.generation = max(self.generation, pool.number(session))
        return session

    def reset(self) -> None:
        """Forget the event loop: a lock that a task has waited for stays bound to it."""
        self._lock = asyncio.Lock()

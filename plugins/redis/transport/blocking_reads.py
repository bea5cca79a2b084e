"""Blocking reads, each on its own connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.clients import AsyncClient, command, connect, translated
from chancy.plugins.redis.transport.scripts import Value

_SINGLE = {"single_connection_client": True}
#: With a socket timeout the client wraps each write in `asyncio.wait_for`, which on Python 3.11
#: loses a cancellation that arrives as the write ends: of 3,000 tasks cancelled within a command,
#: 2,922 went on.
UNTIMED: Mapping[str, Any] = {"socket_timeout": None}


@asynccontextmanager
async def answered(timeout_s: float) -> AsyncGenerator[None]:
    """Limit the wait for a reply, and raise errors of the client as broker errors."""
    with translated():
        async with asyncio.timeout(timeout_s):
            yield


class Servers(Protocol):
    """Finds the server of a key: a client."""

    @property
    def settings(self) -> RedisSettings: ...
    async def server_of(self, key: str | bytes) -> RedisSettings: ...
    def doubt(self) -> None: ...
    async def command(self, *parts: Value) -> Any: ...


class Reader:
    """A connection for blocking commands, one at a time."""

    def __init__(self, link: Servers) -> None:
        self._link = link
        self._client: AsyncClient | None = None
        self._id: int | None = None

    async def read(self, *parts: Value, key: str | bytes, block_ms: int) -> Any:
        """Send a command that blocks for up to `block_ms` milliseconds.

        :param key: one of its keys, which selects the server.
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
            # The next read gets a fresh connection, to the server that has the key by then.
            await self.close()
            self._link.doubt()
            raise

    async def unblock(self) -> bool:
        """End the blocking command as if it had timed out; not supported in a cluster.

        :returns: False if no command is blocking.
        """
        if self._id is None:
            return False
        return bool(await self._link.command("CLIENT", "UNBLOCK", self._id))

    async def close(self) -> None:
        client, self._client, self._id = self._client, None, None
        if client is not None:
            await client.aclose()

"""The way to the server of a shard: scripts, on connections of our own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from redis import exceptions as errors

from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.client import broker_error
from chancy.plugins.redis.connections import Connections
from chancy.plugins.redis.home import MOST_MOVES, Home
from chancy.plugins.redis.keys import Keys
from chancy.plugins.redis.scripts import Script, Value, load_folder
from chancy.plugins.redis.settings import RedisSettings

#: The scripts of the broker.
SCRIPTS: Mapping[str, Script] = load_folder(resources.files("chancy.plugins.redis") / "lua")


class Link:
    """Runs the scripts of one shard.

    :param tag: the hash tag with which all keys of the shard begin.
    """

    def __init__(self, settings: RedisSettings, tag: str) -> None:
        self.settings = settings
        self.tag = tag
        self.home = Home(settings)
        self._open = False
        self._connections = Connections(self.home.settings)
        self._moves = 0
        self._room = asyncio.Semaphore(settings.max_connections)

    async def open(self) -> None:
        """Reach the server. Raises `BrokerError`."""
        self._open = True
        try:
            if self.home.clustered:
                self.home.learn(await self.command("CLUSTER", "NODES"))
            # Where the shard is, too.
            await self.command("EXISTS", self.tag)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._open = False
        await self._let_go()

    async def run(self, name: str, *args: Value) -> Any:
        """Run a script; raises `BrokerError`. After `BrokerUnavailable` it may have been run."""
        script = SCRIPTS[name]
        try:
            return await self.command("EVALSHA", script.digest, 1, self.tag, *args)
        except NoScript:
            return await self.command("EVAL", script.text, 1, self.tag, *args)

    async def command(self, *parts: Value) -> Any:
        """Send a command to the server of the shard."""
        await self._room.acquire()
        try:
            for _ in range(MOST_MOVES):
                try:
                    return await self._exchange(parts)
                except errors.MovedError as error:
                    self.home.moved(error)
            raise BrokerUnavailable(f"the cluster redirected us {MOST_MOVES} times: it is moving")
        except errors.NoScriptError as error:
            raise NoScript from error
        except Exception as error:
            found = broker_error(error)
            if isinstance(found, BrokerUnavailable):
                await self._let_go()
                self.home.lost()
            if found is None or found is error:
                raise
            raise found from error
        finally:
            self._room.release()

    async def _exchange(self, parts: Sequence[Value]) -> Any:
        if self._moves != self.home.moves:
            await self._let_go()
        if not self._open:
            raise BrokerUnavailable("the broker is not open: await broker.open() first")
        return await self._connections.exchange(parts)

    async def _let_go(self) -> None:
        """Drop what leads to a server that is gone, or is not that of the shard."""
        old, self._connections = self._connections, Connections(self.home.settings)
        self._moves = self.home.moves
        await old.close()


@asynccontextmanager
async def linked(settings: RedisSettings) -> AsyncGenerator[Link]:
    """A link to the shard of the jobs, which is closed in the end. It is not open yet."""
    link = Link(settings, Keys(settings.prefix).tag("jobs"))
    try:
        yield link
    finally:
        await link.close()


class NoScript(Exception):
    """The server does not have a script."""

"""The Redis client of the broker: runs the scripts of one shard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from redis import exceptions as errors

from chancy.errors import BrokerUnavailable, NotOpen
from chancy.plugins.redis.keys import Keys
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.clients import broker_error
from chancy.plugins.redis.transport.cluster import MOST_MOVES, ClusterMap
from chancy.plugins.redis.transport.connection import ConnectionPool
from chancy.plugins.redis.transport.scripts import Script, Value, load_folder

#: The scripts of the broker.
SCRIPTS: Mapping[str, Script] = load_folder(resources.files("chancy.plugins.redis.jobs") / "lua")


class ShardClient:
    """Runs the scripts of one shard.

    :param tag: the hash tag at the start of all keys of the shard.
    """

    def __init__(self, settings: RedisSettings, tag: str) -> None:
        self.settings = settings
        self.tag = tag
        self.home = ClusterMap(settings)
        self._open = False
        # The error of the last open(), until one succeeds.
        self._unreached: BrokerUnavailable | None = None
        self._connections = ConnectionPool(self.home.settings)
        self._moves = 0
        self._room = asyncio.Semaphore(settings.max_connections)

    async def open(self) -> None:
        """Connect to the server. Raises `BrokerError`."""
        self._open, self._unreached = True, None
        try:
            if self.home.clustered:
                self.home.learn(await self.command("CLUSTER", "NODES"))
            # Also follows a redirection to the node of the shard.
            await self.command("EXISTS", self.tag)
        except BaseException as error:
            await self.close()
            if isinstance(error, BrokerUnavailable):
                self._unreached = error
            raise

    async def close(self) -> None:
        self._open, self._unreached = False, None
        await self._let_go()
        self._room = asyncio.Semaphore(self.settings.max_connections)  # for the next event loop

    async def run(self, name: str, *args: Value) -> Any:
        """Run a script. Raises `BrokerError`; after `BrokerUnavailable` it may have run."""
        script = SCRIPTS[name]
        try:
            return await self.command("EVALSHA", script.digest, 1, self.tag, *args)
        except NoScript:
            return await self.command("EVAL", script.text, 1, self.tag, *args)

    async def run_lasting(self, name: str, *args: Value) -> Any:
        """Run a script, and wait until the configured number of replicas have its data.

        :raises BrokerError: as `run`; also `BrokerUnavailable` if fewer replicas have it in time.
        """
        if not self.settings.replicas:
            return await self.run(name, *args)
        script = SCRIPTS[name]
        try:
            return await self._last("EVALSHA", script.digest, 1, self.tag, *args)
        except NoScript:
            return await self._last("EVAL", script.text, 1, self.tag, *args)

    async def _last(self, *parts: Value) -> Any:
        # On one connection: WAIT covers the writes of its own connection and all earlier ones.
        wanted, wait_s = self.settings.replicas, self.settings.timeout_s / 2
        written = ("SET", f"{self.tag}:lasting", "")
        waited = ("WAIT", wanted, max(1, round(wait_s * 1_000)))
        _, answer, have = await self._reach(self._exchange_many, (written, parts, waited))
        if have < wanted:
            raise BrokerUnavailable(
                f"only {have} of {wanted} replicas have received the write within {wait_s:g} s, so "
                "it is unknown whether it is durable: check INFO replication"
            )
        return answer

    async def command(self, *parts: Value) -> Any:
        """Send a command to the server of the shard."""
        return await self._reach(self._exchange, parts)

    async def _reach(self, exchange: Callable[[Any], Awaitable[Any]], sent: Sequence[Any]) -> Any:
        room = self._room
        await room.acquire()
        try:
            for _ in range(MOST_MOVES):
                try:
                    return await exchange(sent)
                except errors.MovedError as error:
                    self.home.moved(error)
            raise BrokerUnavailable(
                f"the cluster redirected a command {MOST_MOVES} times: it is resharding"
            )
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
            room.release()

    async def _exchange(self, parts: Sequence[Value]) -> Any:
        if self._moves != self.home.moves:
            await self._let_go()
        return await self._reached().exchange(parts)

    async def _exchange_many(self, commands: Sequence[Sequence[Value]]) -> Sequence[Any]:
        if self._moves != self.home.moves:
            await self._let_go()
        answers = await self._reached().exchange_many(commands)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _reached(self) -> ConnectionPool:
        if self._unreached is not None:
            raise BrokerUnavailable(f"not connected yet: {self._unreached}")
        if not self._open:
            raise NotOpen("the broker is not open: await broker.open() first")
        return self._connections

    async def _let_go(self) -> None:
        """Drop connections to a server that is gone or no longer has the shard."""
        old, self._connections = self._connections, ConnectionPool(self.home.settings)
        self._moves = self.home.moves
        await old.close()


@asynccontextmanager
async def linked(settings: RedisSettings) -> AsyncGenerator[ShardClient]:
    """A client of the shard of jobs: not open yet, and closed at exit."""
    client = ShardClient(settings, Keys(settings.prefix).tag("jobs"))
    try:
        yield client
    finally:
        await client.close()


class NoScript(Exception):
    """The server has not cached the script."""

"""The client of one shard: its scripts use keys with one hash tag."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from chancy.errors import BrokerUnavailable, NotOpen
from chancy.plugins.redis.keys import shard_tag
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import Value


class ShardClient:
    """Runs the scripts of jobs.

    :ivar tag: the hash tag at the start of all keys of the shard.
    """

    def __init__(self, redis: RedisClient) -> None:
        self.redis = redis
        self.settings = redis.settings
        self.tag = shard_tag(redis.prefix)
        self._open = False
        # The error of the last open(), until one succeeds.
        self._unreached: BrokerUnavailable | None = None

    async def open(self) -> None:
        """Connect to the server. Raises `BrokerError`."""
        self._open, self._unreached = True, None
        try:
            await self.command("EXISTS", self.tag)
        except BaseException as error:
            await self.close()
            if isinstance(error, BrokerUnavailable):
                self._unreached = error
            raise

    async def close(self) -> None:
        """Close the connections of the running loop, also those that others share."""
        self._open, self._unreached = False, None
        await self.redis.disconnect()

    async def run(self, name: str, *args: Value) -> Any:
        """Run a script. Raises `BrokerError`; after `BrokerUnavailable` it may have run."""
        self._check_open()
        return await self.redis.run(f"jobs.{name}", (self.tag,), args)

    async def run_lasting(self, name: str, *args: Value) -> Any:
        """Run a script, and wait until the configured number of replicas have its data.

        :raises BrokerError: as `run`; also `BrokerUnavailable` if fewer replicas have it in time.
        """
        wanted = self.settings.replicas
        if not wanted:
            return await self.run(name, *args)
        self._check_open()
        return await self.redis.run(f"jobs.{name}", (self.tag,), args, replicas=wanted)

    async def command(self, *parts: Value) -> Any:
        """Send a command to the server of the shard; returns the raw reply."""
        self._check_open()
        return await self.redis.raw(self.tag, *parts)

    def _check_open(self) -> None:
        if self._unreached is not None:
            raise BrokerUnavailable(f"not connected yet: {self._unreached}")
        if not self._open:
            raise NotOpen("the broker is not open: await broker.open() first")


@asynccontextmanager
async def linked(settings: RedisSettings) -> AsyncGenerator[ShardClient]:
    """An open client of the shard of jobs, which is closed at exit. Raises `BrokerError`."""
    client = ShardClient(RedisClient(settings))
    await client.open()
    try:
        yield client
    finally:
        await client.close()

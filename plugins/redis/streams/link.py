"""The way to Redis that streams take: their scripts, one or many in a round trip."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any

from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError

from chancy.errors import BrokerError
from chancy.plugins.redis.client import (
    AsyncClient,
    Client,
    broker_error,
    command,
    connect,
    connect_sync,
    translated,
)
from chancy.plugins.redis.connections import Connections
from chancy.plugins.redis.scripts import Call as ScriptCall
from chancy.plugins.redis.scripts import Script, Value, load_folder, run_all, run_all_sync
from chancy.plugins.redis.settings import RedisSettings

#: What Redis answers: bytes, whole numbers, None, and lists of them.
Reply = Any
_SINGLE = {"single_connection_client": True}
#: With a timeout of its own the client waits for each write by `asyncio.wait_for`, which on Python
#: 3.11 loses a cancellation that comes as the write ends: of 3,000 tasks that were cancelled within
#: a command, 2,922 went on.
_UNTIMED: Mapping[str, Any] = {"socket_timeout": None}


@asynccontextmanager
async def answered(timeout_s: float) -> AsyncGenerator[None]:
    """Wait for an answer at most so long, and raise the errors of the client as a broker's."""
    with translated():
        async with asyncio.timeout(timeout_s):
            yield


@functools.cache
def scripts() -> Mapping[str, Script]:
    """The scripts of streams by name."""
    return load_folder(resources.files("chancy.plugins.redis.streams") / "lua")


@dataclass(frozen=True, slots=True)
class Call:
    """A script of ``lua/`` with what it is given. All keys share one hash tag."""

    script: str
    keys: Sequence[Value]
    args: Sequence[Value] = ()


class _Way:
    """What leads to Redis from one event loop.

    :ivar turns: a client refuses more callers than it may have connections: they wait for these.
    :ivar straight: to the server, if there is but one.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._client: AsyncClient | None = None
        self.turns = asyncio.Semaphore(settings.max_connections)
        self.straight = Connections(settings)

    @property
    def client(self) -> AsyncClient:
        if self._client is None:
            self._client = connect(self._settings, **_UNTIMED)
        return self._client

    async def close(self) -> None:
        await self.straight.close()
        if self._client is not None:
            await self._client.aclose()


class Link:
    """Reaches Redis or a cluster, by connections of each event loop; it connects at the first use.

    Scripts for a single server go straight to it; a client is for clusters, and for what is rare.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self._ways: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Way] = (
            weakref.WeakKeyDictionary()
        )
        #: The way of threads.
        self.sync = SyncLink(settings)

    @property
    def prefix(self) -> str:
        """What all keys begin with."""
        return self.settings.prefix

    @property
    def clustered(self) -> bool:
        """Whether keys of different tags may be on different servers."""
        return self.settings.cluster

    def _way(self) -> _Way:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        way = self._ways.get(loop)
        if way is None:
            way = self._ways[loop] = _Way(self.settings)
        return way

    async def call(self, script: str, keys: Sequence[Value], args: Sequence[Value] = ()) -> Reply:
        """Run ``lua/<script>.lua``.

        :raises BrokerUnavailable: Redis is away; the outcome is unknown.
        :raises StatementFailed: it refused.
        """
        known, way = scripts()[script], self._way()
        async with way.turns:
            if self.settings.cluster:
                async with answered(self.settings.timeout_s):
                    return await known.run(way.client, keys, args)
            straight = way.straight
            with translated():
                try:
                    return await straight.exchange(
                        ("EVALSHA", known.digest, len(keys), *keys, *args)
                    )
                except NoScriptError:
                    return await straight.exchange(("EVAL", known.text, len(keys), *keys, *args))

    async def call_many(self, calls: Sequence[Call]) -> Sequence[Reply | Exception]:
        """Run scripts in one round trip for each server; an error takes the place of an answer."""
        if not calls:
            return ()
        known, way = scripts(), self._way()
        async with way.turns:
            if self.settings.cluster:
                given = [ScriptCall(known[one.script], one.keys, one.args) for one in calls]
                async with answered(self.settings.timeout_s):
                    return _meant(await run_all(way.client, given))
            with translated():
                answers = await way.straight.exchange_many(
                    [
                        ("EVALSHA", known[one.script].digest, len(one.keys), *one.keys, *one.args)
                        for one in calls
                    ]
                )
        for at, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                one = calls[at]
                try:
                    answers[at] = await self.call(one.script, one.keys, one.args)
                except BrokerError as error:
                    answers[at] = error
        return _meant(answers)

    async def command(self, *parts: Value) -> Reply:
        """Send a plain command; its first key decides the server."""
        way = self._way()
        async with way.turns, answered(self.settings.timeout_s):
            return await command(way.client, *parts)

    def reader(self) -> Reader:
        """A connection of its own for reads that block."""
        return Reader(self)

    async def close(self) -> None:
        """Close the connections of the running loop; the next use makes new ones."""
        way = self._ways.pop(asyncio.get_running_loop(), None)
        if way is not None:
            await way.close()
        self.sync.close()


class SyncLink:
    """`Link` for threads, which may share it; it connects at the first use."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._client: Client | None = None

    def call_many(self, calls: Sequence[Call]) -> Sequence[Reply | Exception]:
        """Run scripts in one round trip for each server; an error takes the place of an answer."""
        if self._client is None:
            self._client = connect_sync(self._settings)
        known = scripts()
        with translated():
            answers = run_all_sync(
                self._client, [ScriptCall(known[one.script], one.keys, one.args) for one in calls]
            )
        return _meant(answers)

    def close(self) -> None:
        """Close the connections; the next use makes new ones."""
        client: Any = self._client
        self._client = None
        if isinstance(client, RedisCluster):
            # Untyped; close() leaves the connections of the nodes open.
            pools: Any = client.disconnect_connection_pools
            pools()
        if client is not None:
            client.close()


def _meant(answers: Sequence[Reply]) -> Sequence[Reply | Exception]:
    return [
        (broker_error(answer) or answer) if isinstance(answer, Exception) else answer
        for answer in answers
    ]


class Reader:
    """A connection on which a command may block; only one at a time."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._client: AsyncClient | None = None
        self._id: int | None = None

    async def read(self, *parts: Value, block_ms: int) -> Reply:
        """Send a command that blocks for up to so many milliseconds."""
        settings = self._link.settings
        try:
            async with answered(settings.timeout_s + block_ms / 1000):
                if self._client is None:
                    more: dict[str, Any] = {} if settings.cluster else _SINGLE
                    self._client = connect(settings, **_UNTIMED, **more)
                    if not settings.cluster:
                        self._id = await command(self._client, "CLIENT", "ID")
                return await command(self._client, *parts)
        except BaseException:
            # The next one gets a connection that owes no answer.
            await self.close()
            raise

    async def unblock(self) -> None:
        """End the command that blocks now, as if its time were over. Not in a cluster."""
        if self._id is not None:
            await self._link.command("CLIENT", "UNBLOCK", self._id)

    async def close(self) -> None:
        client, self._client, self._id = self._client, None, None
        if client is not None:
            await client.aclose()

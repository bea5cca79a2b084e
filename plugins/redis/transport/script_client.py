"""The Redis client of streams: runs their scripts, one or many per round trip."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.exceptions import NoScriptError, RedisClusterException
from redis.retry import Retry

from chancy.errors import BrokerError, BrokerUnavailable
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.blocking_reads import UNTIMED, Reader, answered
from chancy.plugins.redis.transport.clients import (
    AsyncClient,
    Client,
    broker_error,
    command,
    connect,
    connect_sync,
    translated,
)
from chancy.plugins.redis.transport.cluster import ClusterRouter, remember, url_of
from chancy.plugins.redis.transport.connection import ConnectionPool
from chancy.plugins.redis.transport.scripts import Script, Value, load_folder, run_all_sync
from chancy.plugins.redis.transport.scripts import ScriptCall as ScriptCall

#: A reply of Redis: bytes, integers, None, and lists of them.
Reply = Any


@functools.cache
def scripts() -> Mapping[str, Script]:
    """The scripts of streams by name."""
    return load_folder(resources.files("chancy.plugins.redis.streams") / "lua")


@dataclass(frozen=True, slots=True)
class StreamCall:
    """A script of ``lua/`` with its keys and arguments. All keys share one hash tag."""

    script: str
    keys: Sequence[Value]
    args: Sequence[Value] = ()


class _LoopConnections:
    """The connections of one event loop.

    :ivar turns: limits the callers, since a client refuses more of them than it has connections.
    :ivar straight: direct connections for scripts, without the client.
    """

    def __init__(self, settings: RedisSettings, known: list[str]) -> None:
        self._settings = settings
        self._client: AsyncClient | None = None
        self.turns = asyncio.Semaphore(settings.max_connections)
        self.straight = (
            ClusterRouter(settings, known) if settings.cluster else ConnectionPool(settings)
        )

    async def client(self) -> AsyncClient:
        """The client of the loop. Raises the errors of the client."""
        if self._client is None:
            settings = self._settings
            if isinstance(self.straight, ClusterRouter):
                # The server of the URL may have left the cluster.
                settings = await self.straight.cluster()
            self._client = self._client or connect(settings, **UNTIMED)
        return self._client

    async def close(self) -> None:
        await self.straight.close()
        if self._client is not None:
            await self._client.aclose()


class ScriptClient:
    """A client of Redis or a cluster with connections for each event loop, opened at first use.

    Scripts use direct connections to their servers; a redis-py client sends the rare commands.
    """

    def __init__(self, settings: RedisSettings, known: list[str] | None = None) -> None:
        self.settings = settings
        # URLs of the servers of a cluster, shared by all loops and threads: the server of the
        # settings may be gone when one of them starts.
        self._known = [settings.url] if known is None else known
        self._ways: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections] = (
            weakref.WeakKeyDictionary()
        )
        #: The client for threads.
        self.sync = SyncScriptClient(settings, self._known)

    @property
    def prefix(self) -> str:
        """The prefix of all keys."""
        return self.settings.prefix

    @property
    def clustered(self) -> bool:
        """Whether keys of different tags may be on different servers."""
        return self.settings.cluster

    def _way(self) -> _LoopConnections:
        """The connections of the running loop."""
        loop = asyncio.get_running_loop()
        way = self._ways.get(loop)
        if way is None:
            way = self._ways[loop] = _LoopConnections(self.settings, self._known)
        return way

    async def call(self, script: str, keys: Sequence[Value], args: Sequence[Value] = ()) -> Reply:
        """Run ``lua/<script>.lua``.

        :raises BrokerUnavailable: Redis is unavailable; the outcome is unknown.
        :raises StatementFailed: Redis refused the script.
        """
        known, way = scripts()[script], self._way()
        async with way.turns:
            straight = way.straight
            with translated():
                try:
                    return await straight.exchange(
                        ("EVALSHA", known.digest, len(keys), *keys, *args)
                    )
                except NoScriptError:
                    return await straight.exchange(("EVAL", known.text, len(keys), *keys, *args))

    async def call_many(self, calls: Sequence[StreamCall]) -> Sequence[Reply | Exception]:
        """Run scripts in one round trip per server; an error takes the place of a reply."""
        if not calls:
            return ()
        known, way = scripts(), self._way()
        async with way.turns:
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
        """Send a plain command; its first key selects the server."""
        way = self._way()
        async with way.turns, answered(self.settings.timeout_s):
            return await command(await way.client(), *parts)

    async def server_of(self, key: str | bytes) -> RedisSettings:
        """The settings of the server that has a key. Raises the errors of the client."""
        straight = self._way().straight
        return self.settings if isinstance(straight, ConnectionPool) else await straight.server(key)

    def doubt(self) -> None:
        """Refresh the cluster's slots before the next command, because a server did not reply."""
        straight = self._way().straight
        if isinstance(straight, ClusterRouter):
            straight.doubt()

    def another(self, **changes: float) -> ScriptClient:
        """Another client with its own connections and the same known servers.

        :param changes: changed settings.
        """
        return ScriptClient(self.settings.model_copy(update=changes), self._known)

    def reader(self) -> Reader:
        """A separate connection for blocking reads."""
        return Reader(self)

    async def close(self) -> None:
        """Close the connections of the running loop; the next use opens new ones."""
        way = self._ways.pop(asyncio.get_running_loop(), None)
        if way is not None:
            await way.close()
        self.sync.close()


class SyncScriptClient:
    """`ScriptClient` for threads, which may share it; it connects at first use."""

    def __init__(self, settings: RedisSettings, known: list[str]) -> None:
        self._settings = settings
        self._known = known
        self._client: Client | None = None

    def call_many(self, calls: Sequence[StreamCall]) -> Sequence[Reply | Exception]:
        """Run scripts in one round trip per server; an error takes the place of a reply."""
        known = scripts()
        given = [ScriptCall(known[one.script], one.keys, one.args) for one in calls]
        try:
            with translated():
                client = self._client = self._client or self._connect()
                answers = _meant(run_all_sync(client, given))
        except BrokerUnavailable:
            self._doubt()
            raise
        if any(isinstance(answer, BrokerUnavailable) for answer in answers):
            self._doubt()
        return answers

    def _doubt(self) -> None:
        """Replace the client if a server of a cluster is gone: it would keep its old slots.

        Nothing is closed, because other threads may be waiting for replies.
        """
        if self._settings.cluster:
            self._client = None

    def _connect(self) -> Client:
        if not self._settings.cluster:
            return connect_sync(self._settings)
        failed = RedisClusterException("no server of the cluster is known")
        for url in [*self._known]:
            settings = self._settings.model_copy(update={"url": url})
            try:
                # No retries: a record that may have been appended is not appended again.
                client = connect_sync(settings, retry=Retry(NoBackoff(), 0))
            except RedisClusterException as error:
                failed = error
                continue
            untyped: Any = client
            nodes = [(str(node.host), int(node.port)) for node in untyped.get_nodes()]
            remember(self._known, [url_of(self._settings, *node) for node in nodes])
            return client
        raise failed

    def close(self) -> None:
        """Close the connections; the next use opens new ones."""
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

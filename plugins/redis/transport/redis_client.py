"""The client of Redis: runs scripts and commands on a server, a Sentinel's primary or a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import NoScriptError

from chancy.errors import BrokerError, BrokerUnavailable
from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.cluster import ClusterRouter, Group
from chancy.plugins.redis.transport.connection import Connector, RedisConnection
from chancy.plugins.redis.transport.location import (
    Client,
    Location,
    location_of,
    location_of_client,
)
from chancy.plugins.redis.transport.pool import ConnectionPool
from chancy.plugins.redis.transport.scripts import ScriptCall, Value, script_of
from chancy.plugins.redis.transport.translation import broker_error, translated
from chancy.results.background import BackgroundLoop

#: A reply of Redis: bytes, integers, None, and lists of them.
Reply = Any

# Never connected.
_PARSERS: Any = AsyncRedis(protocol=2).response_callbacks
#: Writes a key, also on a full server: it refuses only scripts that have not written yet, and
#: ``PERSIST`` writes nothing to replicas, since the key never expires.
_WRITE = "redis.call('PERSIST', KEYS[1]) redis.call('SET', KEYS[1], '')"


class _LoopConnections:
    """The connections of one event loop.

    :ivar turns: limits the callers.
    """

    def __init__(self, client: RedisClient) -> None:
        settings, location = client.settings, client.location
        self.turns = asyncio.Semaphore(settings.max_connections)
        self._cached = set[str]()
        self.connector = Connector(
            location, timeout_s=settings.connect_timeout_s, known=client.known
        )
        self.pool = ConnectionPool(self.connector, settings.timeout_s)
        self.router = ClusterRouter(settings, location, client.known) if location.cluster else None

    def cached(self) -> set[str]:
        """Digests of the scripts that the server has run, as far as it is still the same.

        A server that lacks a script refuses it, which costs a second call: a new primary would
        refuse one in each of the many calls that wait for it.
        """
        if self.pool.lost:
            self._cached.clear()
        return self._cached

    async def close(self) -> None:
        cancelled = self.pool.close()
        if self.router is not None:
            cancelled += self.router.close()
        # The loop may end after this call, which would leave their sockets open.
        if cancelled:
            await asyncio.wait(cancelled)

    def doubt(self) -> None:
        """Look for the servers again: one did not reply as expected."""
        self._cached.clear()
        self.pool.renew()
        if self.router is not None:
            self.router.doubt()


class RedisClient:
    """Connections for each event loop, opened at first use, and shared by all users of the loop.

    All methods raise `BrokerUnavailable` if Redis is unavailable, so that the outcome is unknown,
    and `StatementFailed` if it refused. Nothing that may have run is sent again.

    :param given: a client of redis-py, whose server is used instead of that of the settings.
    :ivar known: servers of a cluster or Sentinels, shared by all loops: that of the URL may be gone
        when one of them starts.
    :ivar background: the loop for threads and heartbeats, which is not blocked by others.
    """

    def __init__(self, settings: RedisSettings, given: Client | None = None) -> None:
        self.settings = settings
        self.location: Location = (
            location_of(settings) if given is None else location_of_client(given)
        )
        self.known = [*self.location.places]
        self._loops: dict[asyncio.AbstractEventLoop, _LoopConnections] = {}
        self.background = BackgroundLoop(self.disconnect, name="chancy redis")

    @property
    def prefix(self) -> str:
        """The prefix of all keys."""
        return self.settings.prefix

    @property
    def clustered(self) -> bool:
        """Whether keys of different tags may be on different servers."""
        return self.location.cluster

    async def run(
        self,
        name: str,
        keys: Sequence[Value],
        args: Sequence[Value] = (),
        *,
        replicas: int = 0,
        timeout_s: float | None = None,
    ) -> Reply:
        """Run the script ``PACKAGE.NAME``.

        :param replicas: replicas that must have received its writes; `BrokerUnavailable` if fewer
            have: they may still be durable.
        :param timeout_s: other seconds for the reply than those of the settings.
        """
        script, cached = script_of(name), self._connections().cached()
        hows = (("EVALSHA", script.digest), ("EVAL", script.text))
        reply: Reply = None
        for how in hows if script.digest in cached else hows[1:]:
            parts = (*how, len(keys), *keys, *args)
            if replicas:
                group = (keys[0], (parts,))
                [reply] = await self._send([group], script.declared, timeout_s, replicas)
            else:
                reply = await self._send_one(keys[0], parts, script.declared, timeout_s)
            if not isinstance(reply, NoScriptError):
                break
        if isinstance(reply, Exception):
            raise reply
        cached.add(script.digest)
        return reply

    async def run_many(
        self, calls: Sequence[ScriptCall], *, replicas: int = 0, timeout_s: float | None = None
    ) -> list[Reply | Exception]:
        """Run scripts in one round trip per server; an error takes the place of a reply.

        Each script is atomic; all of them together are not.
        """
        if not calls:
            return []
        groups: list[Group] = []
        cached = self._connections().cached()
        for call in calls:
            script = script_of(call.script)
            known = script.digest in cached
            how = ("EVALSHA", script.digest) if known else ("EVAL", script.text)
            # The first of several calls stores the script for the others.
            cached.add(script.digest)
            parts = (*how, len(call.keys), *call.keys, *call.args)
            groups.append((call.keys[0], (parts,)))
        declared = all(script_of(call.script).declared for call in calls)
        replies = await self._send(groups, declared, timeout_s, replicas)
        for at, reply in enumerate(replies):
            if isinstance(reply, NoScriptError):
                call = calls[at]
                try:
                    replies[at] = await self.run(
                        call.script, call.keys, call.args, replicas=replicas, timeout_s=timeout_s
                    )
                except BrokerError as error:
                    replies[at] = error
        return replies

    async def command(self, *parts: Value, timeout_s: float | None = None) -> Reply:
        """Send a plain command; its reply is parsed as by redis-py.

        In a cluster the first part with a hash tag selects the server, any server without one.
        """
        key = next((part for part in parts if "{" in str(part)), "")
        return parsed(parts[0], await self.raw(key, *parts, timeout_s=timeout_s))

    async def raw(self, key: Value, *parts: Value, timeout_s: float | None = None) -> Reply:
        """Send a plain command to the server of a key."""
        reply = await self._send_one(key, parts, True, timeout_s)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def wire(self, key: Value, on_message: Callable[[Any], None]) -> RedisConnection:
        """Open a separate connection to the server of a key; see `RedisConnection`."""
        connections = self._connections()
        connector = connections.connector
        try:
            with translated():
                if connections.router is not None:
                    connector = await connections.router.connector(key)
                return await connector.wire(on_message)
        except BrokerError:
            connections.doubt()
            raise

    async def _send_one(
        self, key: Value, parts: Sequence[Value], ask: bool, timeout_s: float | None
    ) -> Reply | Exception:
        """`_send` for one command, which takes less time on a single server."""
        connections = self._loops.get(asyncio.get_running_loop())
        if connections is None or connections.router is not None:
            return (await self._send([(key, (parts,))], ask, timeout_s))[0]
        try:
            async with connections.turns:
                [answer] = await connections.pool.exchange((parts,), timeout_s)
        except Exception as error:
            answer = error
        if not isinstance(answer, Exception):
            return answer
        answer = _reply(answer, 0)
        if isinstance(answer, BrokerUnavailable):
            connections.doubt()
        return answer

    async def _send(
        self, groups: Sequence[Group], ask: bool, timeout_s: float | None, replicas: int = 0
    ) -> list[Reply | Exception]:
        connections, last = self._connections(), None
        if replicas:
            # A script whose work was done by an earlier attempt writes nothing, and ``WAIT``, which
            # covers the writes of its own connection, would return immediately.
            groups = [
                (key, (("EVAL", _WRITE, 1, f"{key!s}:lasting"), *commands))
                for key, commands in groups
            ]
            # Half of the timeout, so that the reply itself still arrives in time.
            wait_ms = max(1, round((timeout_s or self.settings.timeout_s) * 500))
            last = ("WAIT", replicas, wait_ms)
        answers: Sequence[list[Any] | Exception]
        try:
            async with connections.turns:
                with translated():
                    if connections.router is None:
                        sent = [commands for _, commands in groups]
                        answers = await connections.pool.exchange_groups(sent, last, timeout_s)
                    else:
                        answers = await connections.router.exchange(
                            groups, ask=ask, last=last, timeout_s=timeout_s
                        )
            replies = [_reply(answer, replicas) for answer in answers]
        except BrokerUnavailable:
            connections.doubt()
            raise
        if any(isinstance(reply, BrokerUnavailable) for reply in replies):
            connections.doubt()
        return replies

    def _connections(self) -> _LoopConnections:
        """The connections of the running loop."""
        loop = asyncio.get_running_loop()
        connections = self._loops.get(loop)
        if connections is None:
            # A loop that ended without `close` would keep its sockets open.
            for ended in [other for other in list(self._loops) if other.is_closed()]:
                self._loops.pop(ended, None)
            connections = self._loops[loop] = _LoopConnections(self)
        return connections

    def doubt(self) -> None:
        """Look for the servers again before the next call: one did not reply as expected."""
        self._connections().doubt()

    async def disconnect(self) -> None:
        """Close the connections of the running loop; the next use opens new ones."""
        connections = self._loops.pop(asyncio.get_running_loop(), None)
        if connections is not None:
            await connections.close()

    async def close(self) -> None:
        """`disconnect`, also in the background loop if nothing runs there."""
        await self.disconnect()
        self.background.close()


def parsed(command: Value, reply: Reply) -> Reply:
    """The raw reply to a command as redis-py returns it."""
    parser = _PARSERS.get(str(command))
    return reply if parser is None else parser(reply)


def _reply(answer: Any, replicas: int) -> Reply | Exception:
    """The reply to the script or command of a group, or its error."""
    if isinstance(answer, list):
        errors = [reply for reply in answer if isinstance(reply, Exception)]
        if not errors:
            if not replicas:
                return answer[0]
            have = answer[2]
            return (
                answer[1]
                if have >= replicas
                else BrokerUnavailable(
                    f"only {have} of {replicas} replicas have received the write in time, so it is "
                    "unknown whether it is durable: check INFO replication"
                )
            )
        answer = errors[0]
    found = None if isinstance(answer, NoScriptError) else broker_error(answer)
    if found is None:
        return answer
    found.__cause__ = answer
    return found

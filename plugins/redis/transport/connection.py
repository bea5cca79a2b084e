"""One connection to a server: sends commands and reads their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from hiredis import Reader, pack_command
from redis import exceptions as errors
from redis.asyncio import Redis as AsyncRedis
from redis.connection import DefaultParser

from chancy.plugins.redis.settings import RedisSettings
from chancy.plugins.redis.transport.clients import connect
from chancy.plugins.redis.transport.scripts import Value

# Implemented in C: 1,000 jobs take 2 ms less. Its stub requires one type for all parts.
_packed: Callable[[Any], bytes] = pack_command
_parse_error: Callable[[str], Exception] = DefaultParser.parse_error


class RedisConnection(asyncio.Protocol):
    """A connection for one caller at a time.

    Data is parsed in the callback of the event loop. The streams of asyncio and the parser of a
    client would take another iteration of the loop, and 20 µs more.

    :param hear: called with pushed messages; without it, an unexpected reply closes the connection.
    """

    def __init__(self, hear: Callable[[Any], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(protocolError=errors.InvalidResponse, replyError=_parse_error)
        self._hear = hear
        self._transport: asyncio.Transport | None = None
        # For the commands in flight: their completion, the replies so far, and how many to expect.
        self._answered: asyncio.Future[None] | None = None
        self._answers: list[Any] = []
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = 0.0
        #: Done when the connection is unusable, with the reason as its result.
        self.ended: asyncio.Future[str] = self._loop.create_future()

    async def command(self, parts: Sequence[Value], timeout_s: float) -> Any:
        """Send a command; returns its reply. Raises the errors of the client.

        After any error other than `errors.ResponseError` the connection is unusable: a late reply
        would be taken for that of the next command.
        """
        [answer] = await self._exchange(_packed(tuple(parts)), 1, timeout_s)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def commands(self, commands: Sequence[Sequence[Value]], timeout_s: float) -> list[Any]:
        """Send several commands at once; an error takes the place of a reply."""
        sent = b"".join([_packed(tuple(parts)) for parts in commands])
        return await self._exchange(sent, len(commands), timeout_s)

    async def _exchange(self, sent: bytes, count: int, timeout_s: float) -> list[Any]:
        if not count:
            return []
        if self._transport is None or self.ended.done():
            raise errors.ConnectionError(self._why())
        self._answered = answered = self._loop.create_future()
        self._answers, self._count = [], count
        self._deadline = self._loop.time() + timeout_s
        # One timer for many commands: setting and cancelling one for each takes 3 µs.
        if self._timer is not None and self._timer.when() > self._deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_later(timeout_s, self._look_at_time)
        self._transport.write(sent)
        try:
            await answered
        except BaseException:
            self.close("a command got no reply")
            raise
        finally:
            self._answered = None
        return self._answers

    def close(self, why: str = "it was closed") -> None:
        """Close the connection; commands in flight raise an error."""
        if not self.ended.done():
            self.ended.set_result(why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        waiting = self._answered
        if waiting is not None and not waiting.done():
            waiting.set_exception(errors.ConnectionError(self._why()))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops have their own transport classes.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            while (answer := self._reader.gets()) is not False:
                self._take(answer)
        except errors.InvalidResponse as error:
            self.close(f"the server does not follow the Redis protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("the server closed it" if exc is None else str(exc))

    def _take(self, answer: Any) -> None:
        waiting = self._answered
        if waiting is not None and not waiting.done():
            self._answers.append(answer)
            if len(self._answers) == self._count:
                waiting.set_result(None)
        elif self._hear is not None:
            self._hear(answer)
        else:
            self.close("an unexpected reply arrived")

    def _look_at_time(self) -> None:
        self._timer = None
        waiting = self._answered
        if waiting is None or waiting.done():
            return
        left_s = self._deadline - self._loop.time()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._look_at_time)
        else:
            waiting.set_exception(errors.TimeoutError("no reply in time"))

    def _why(self) -> str:
        reason = self.ended.result() if self.ended.done() else "not connected"
        return f"the connection is closed: {reason}"


class Connector:
    """Opens connections to one server."""

    def __init__(self, settings: RedisSettings) -> None:
        self._timeout_s = settings.connect_timeout_s
        client = connect(settings)
        assert isinstance(client, AsyncRedis), "each node of a cluster has its own connector"
        # Never connected: it holds the parsed URL, which takes a millisecond to make.
        self._about: Any = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]

    async def wire(self, hear: Callable[[Any], None] | None = None) -> RedisConnection:
        """Open a connection and authenticate; see `RedisConnection`.

        Raises errors of the client, `OSError` and `TimeoutError`.
        """
        loop, about, wire = asyncio.get_running_loop(), self._about, None
        try:
            async with asyncio.timeout(self._timeout_s):
                if path := getattr(about, "path", None):
                    _, wire = await loop.create_unix_connection(lambda: RedisConnection(hear), path)
                else:
                    secured = getattr(about, "ssl_context", None)
                    _, wire = await loop.create_connection(
                        lambda: RedisConnection(hear),
                        about.host,
                        about.port,
                        ssl=secured and secured.get(),
                    )
                await self._greet(wire)
        except BaseException as error:
            if wire is not None:
                wire.close()
            if isinstance(error, OSError):
                self._name_the_server(error)
            raise
        return wire

    def _name_the_server(self, error: OSError) -> None:
        """Raise the error again with the name of the server, if its message lacks it.

        An unknown host is reported without its name, and a timeout without any message.
        """
        path = getattr(self._about, "path", None)
        where = path or f"{self._about.host}:{self._about.port}"
        message = str(error) or f"no reply within {self._timeout_s:g} s"
        if str(path or self._about.host) not in message:
            # The type is kept: callers do not retry a timeout, unlike a refused connection.
            kind = TimeoutError if isinstance(error, TimeoutError) else OSError
            raise kind(f"{where}: {message}") from error

    async def _greet(self, wire: RedisConnection) -> None:
        about, greetings = self._about, list[Sequence[Value]]()
        if about.password:
            names = (about.username,) if about.username else ()
            greetings.append(("AUTH", *names, about.password))
        if about.db:
            greetings.append(("SELECT", about.db))
        greetings.append(("CLIENT", "SETNAME", about.client_name))
        for answer in await wire.commands(greetings, self._timeout_s):
            if isinstance(answer, Exception):
                raise answer


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

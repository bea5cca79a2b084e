"""One connection to a server: sends commands and reads their replies."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, cast

from hiredis import PushNotification, Reader, pack_command
from redis import exceptions as errors
from redis.connection import DefaultParser

from chancy.plugins.redis.transport.location import Location, Place
from chancy.plugins.redis.transport.scripts import Value

# Implemented in C: 1,000 jobs take 2 ms less. Its stub requires one type for all parts.
_packed: Callable[[Any], bytes] = pack_command
_parse_error: Callable[[str], Exception] = DefaultParser.parse_error


class _Exchange:
    """Commands in flight: their replies so far, and how many to expect."""

    __slots__ = ("answers", "count", "deadline", "done")

    def __init__(self, done: asyncio.Future[list[Any]], count: int, deadline: float) -> None:
        self.done = done
        self.count = count
        self.deadline = deadline
        self.answers: list[Any] = []


class RedisConnection(asyncio.Protocol):
    """A connection that callers may share: replies arrive in the order of the commands.

    Data is parsed in the callback of the event loop. The streams of asyncio and the parser of a
    client would take another iteration of the loop, and 20 µs more.

    :param on_message: called with messages of channels. The connection then uses RESP3, in which
        these may arrive between replies, and while a command blocks.
    :ivar late: whether a reply did not arrive in time: it should take no more commands.
    """

    def __init__(self, on_message: Callable[[Any], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(protocolError=errors.InvalidResponse, replyError=_parse_error)
        self._on_message = on_message
        self._transport: asyncio.Transport | None = None
        self._flight = deque[_Exchange]()
        self._timer: asyncio.TimerHandle | None = None
        self.late = False
        #: Done when the connection is unusable, with the reason as its result.
        self.ended: asyncio.Future[str] = self._loop.create_future()

    async def command(self, parts: Sequence[Value], timeout_s: float) -> Any:
        """Send a command; returns its reply. Raises the errors of redis-py."""
        [answer] = await self.commands([parts], timeout_s)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def commands(self, commands: Sequence[Sequence[Value]], timeout_s: float) -> list[Any]:
        """Send several commands at once; an error takes the place of a reply.

        The replies to a cancelled or late call are dropped when they arrive.
        """
        if not commands:
            return []
        if self._transport is None or self.ended.done():
            raise errors.ConnectionError(self._why())
        deadline = self._loop.time() + timeout_s
        flight = _Exchange(self._loop.create_future(), len(commands), deadline)
        self._flight.append(flight)
        # One timer for many commands: setting and cancelling one for each takes 3 µs.
        if self._timer is not None and self._timer.when() > deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._check_deadlines)
        if len(commands) == 1:
            self._transport.write(_packed(tuple(commands[0])))
        else:
            self._transport.write(b"".join([_packed(tuple(parts)) for parts in commands]))
        return await flight.done

    def close(self, why: str = "it was closed") -> None:
        """Close the connection; commands in flight raise an error."""
        if not self.ended.done():
            self.ended.set_result(why)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        while self._flight:
            done = self._flight.popleft().done
            if not done.done():
                done.set_exception(errors.ConnectionError(self._why()))

    def close_when_done(self) -> None:
        """Close the connection behind the replies to the commands in flight."""
        self.late = True
        self._close_unless_awaited()

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
        if self._on_message is not None and _is_message(answer):
            self._on_message(answer)
        elif self._flight:
            flight = self._flight[0]
            flight.answers.append(answer)
            if len(flight.answers) == flight.count:
                self._flight.popleft()
                if not flight.done.done():
                    flight.done.set_result(flight.answers)
                if self.late:
                    self._close_unless_awaited()
        else:
            self.close("an unexpected reply arrived")

    def _close_unless_awaited(self) -> None:
        if all(flight.done.done() for flight in self._flight):
            self.close()

    def _check_deadlines(self) -> None:
        """Fail the calls whose time is over; close the connection when no other waits."""
        self._timer, now = None, self._loop.time()
        for flight in self._flight:
            if flight.deadline <= now:
                self.late = True
                if not flight.done.done():
                    flight.done.set_exception(errors.TimeoutError("no reply in time"))
        left = [flight.deadline for flight in self._flight if not flight.done.done()]
        if left:
            self._timer = self._loop.call_at(min(left), self._check_deadlines)
        elif self.late:
            self.close("a command got no reply")

    def _why(self) -> str:
        reason = self.ended.result() if self.ended.done() else "not connected"
        return f"the connection is closed: {reason}"


def _is_message(answer: Any) -> bool:
    """Whether it is no reply: those to ``SUBSCRIBE`` and ``UNSUBSCRIBE`` are pushed, too."""
    return isinstance(answer, PushNotification) and not answer[0].endswith(b"subscribe")


class Connector:
    """Opens connections to one server; belongs to one event loop.

    :param place: the server; None: the only one, or the primary that Sentinel names.
    :param known: the Sentinels in the order in which they are asked, shared by all loops.
    :param timeout_s: seconds for a connection.
    """

    def __init__(
        self,
        location: Location,
        place: Place | None = None,
        *,
        timeout_s: float,
        known: list[Place] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._sentinels: Sentinels | None = None
        if place is None and location.sentinel is not None:
            places = [*location.places] if known is None else known
            self._sentinels = Sentinels(location, location.sentinel, timeout_s, places)
        elif place is None and location.places:
            place = location.places[0]
        # It holds the parsed options, which take a millisecond to make.
        self._about: Any = location.server(place)

    async def wire(
        self, on_message: Callable[[Any], None] | None = None, *, timeout_s: float | None = None
    ) -> RedisConnection:
        """Open a connection and authenticate; see `RedisConnection`.

        Raises errors of redis-py, `OSError` and `TimeoutError`.

        :param timeout_s: fewer seconds than usual.
        """
        limit_s = min(self._timeout_s, timeout_s or self._timeout_s)
        about, wire, named = self._about, None, None
        try:
            async with asyncio.timeout(limit_s):
                if self._sentinels is not None:
                    named = await self._sentinels.primary()
                    about = copy(about)
                    about.host, about.port = named
                wire = await _open(about, on_message)
                await self._greet(about, wire, limit_s, pushes=on_message is not None)
        except BaseException as error:
            if wire is not None:
                wire.close()
            if named and self._sentinels and isinstance(error, errors.RedisError | OSError):
                self._sentinels.doubt(named)
            if isinstance(error, OSError):
                _name_the_server(about, error, limit_s)
            raise
        return wire

    async def _greet(
        self, about: Any, wire: RedisConnection, timeout_s: float, *, pushes: bool
    ) -> None:
        greetings = list[Sequence[Value]]()
        provider = about.credential_provider
        if provider is not None:
            greetings.append(("AUTH", *await provider.get_credentials_async()))
        elif about.password:
            names = (about.username,) if about.username else ()
            greetings.append(("AUTH", *names, about.password))
        if pushes:
            greetings.append(("HELLO", 3))
        if about.db:
            greetings.append(("SELECT", about.db))
        greetings.append(("CLIENT", "SETNAME", "chancy"))
        if self._sentinels is not None:
            greetings.append(("ROLE",))
        answers = await wire.commands(greetings, timeout_s)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        if self._sentinels is not None and answers[-1][0] != b"master":
            raise errors.ReadOnlyError(f"{about.host}:{about.port} is no longer a primary")


class Sentinels:
    """Asks the Sentinels for the primary; belongs to one event loop.

    Calls that wait for the same answer share it: a promotion closes all connections of a process at
    once, and each new one would otherwise have to ask through another connection.

    :param name: the name by which they know the primary.
    :param timeout_s: seconds for the connection to the primary, of which each Sentinel gets a part.
    :param places: the Sentinels in the order in which they are asked, shared by all loops.
    """

    def __init__(
        self, location: Location, name: str, timeout_s: float, places: list[Place]
    ) -> None:
        self._name = name
        # Another Sentinel must still be asked in time.
        self._limit_s = timeout_s / 4
        self._places = places
        self._connectors = {
            place: Connector(location.of_sentinel(place), timeout_s=self._limit_s)
            for place in places
        }
        self._asking = asyncio.Lock()
        self._answers = 0
        self._last: Place | None = None
        self._named_by: Place | None = None

    async def primary(self) -> Place:
        """The primary that the first Sentinel to answer names; see `doubt`.

        Raises errors of redis-py, and `OSError`.
        """
        before = self._answers
        async with self._asking:
            if self._last is None or self._answers == before:
                self._last = await self._ask()
                self._answers += 1
            return self._last

    def doubt(self, place: Place) -> None:
        """Ask the others first: the Sentinel that named this primary may be cut off from them."""
        if place == self._last:
            # In one step: other loops use the list, too.
            self._places[:] = sorted([*self._places], key=lambda one: one == self._named_by)
            self._last = None

    async def _ask(self) -> Place:
        failed: Exception = errors.ConnectionError(f"no Sentinel knows the primary {self._name!r}")
        for place in [*self._places]:
            try:
                wire = await self._connectors[place].wire()
                try:
                    asked = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
                    found = await wire.command(asked, self._limit_s)
                finally:
                    wire.close()
            except (errors.RedisError, OSError) as error:
                failed = error
            else:
                if found is not None:
                    self._named_by = place
                    return found[0].decode(), int(found[1])
        raise failed


async def _open(about: Any, on_message: Callable[[Any], None] | None) -> RedisConnection:
    loop = asyncio.get_running_loop()
    if path := getattr(about, "path", None):
        _, wire = await loop.create_unix_connection(lambda: RedisConnection(on_message), path)
        return wire
    secured = getattr(about, "ssl_context", None)
    _, wire = await loop.create_connection(
        lambda: RedisConnection(on_message), about.host, about.port, ssl=secured and secured.get()
    )
    return wire


def _name_the_server(about: Any, error: OSError, timeout_s: float) -> None:
    """Raise the error again with the name of the server, if its message lacks it.

    An unknown host is reported without its name, and a timeout without any message.
    """
    path = getattr(about, "path", None)
    where = path or f"{about.host}:{about.port}"
    message = str(error) or f"no reply within {timeout_s:g} s"
    if where not in message:
        # The type is kept: callers do not retry a timeout, unlike a refused connection.
        kind = TimeoutError if isinstance(error, TimeoutError) else OSError
        raise kind(f"{where}: {message}") from error

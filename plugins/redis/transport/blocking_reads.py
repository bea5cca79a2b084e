"""Waits of a process for entries of streams and messages of channels, on one connection."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from chancy.clock import Backoff
from chancy.errors import BrokerError, BrokerUnavailable, StatementFailed
from chancy.plugins.redis.transport.connection import RedisConnection
from chancy.plugins.redis.transport.redis_client import RedisClient, Reply
from chancy.plugins.redis.transport.scripts import Value, script_of
from chancy.plugins.redis.transport.translation import translated

logger = logging.getLogger("chancy.redis.streams")

#: Milliseconds for which a read blocks, and for which it blocks if ``CLIENT UNBLOCK`` is refused.
_BLOCK_MS, _SHORT_MS = 4_000, 100
#: Seconds before the next attempt to unblock a read, and before the next read after an entry; and
#: before both after an error.
_SOON_S, _LATE_S = 0.004, 0.1
#: Most bytes of entries that a read may return: by default Redis closes a connection with channels
#: for which it has to store 32 MiB, or 8 MiB for a minute.
_MOST_BYTES = 4 * 1024 * 1024
#: Most streams that a script looks at: a thousand take 2.3 ms of the server.
_MOST_KEYS = 500

#: Called once: with None if there are entries, or with the error that ended the wait.
OnEntries = Callable[[BrokerError | None], None]


def entry_order(xid: str) -> tuple[int, int]:
    """The order of an entry's id in its stream."""
    ms, _, seq = xid.partition("-")
    return int(ms), int(seq or 0)


class ChannelUser:
    """One user's subscription to channels.

    :ivar begun: done once the server sends their messages.
    """

    __slots__ = ("begun", "on_lost", "on_message")

    def __init__(self, on_message: Callable[[bytes], None], on_lost: Callable[[str], None]) -> None:
        self.on_message = on_message
        self.on_lost = on_lost
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: BrokerError) -> None:
        if self.begun.done():
            self.on_lost(str(error))
        else:
            self.begun.set_exception(error)


class StreamWatch:
    """Waits for entries of streams and messages of channels.

    They are of one server, or of one slot of a cluster. One task uses the connection. A stream or
    channel that is added while a read blocks ends the read.
    """

    def __init__(self, client: RedisClient, key: str) -> None:
        self.users = 0
        self._client = client
        self._key = key
        #: The position and the callback of each user of a stream.
        self._waiting: dict[bytes, dict[object, tuple[str, OnEntries]]] = {}
        # The positions of the current read.
        self._asked: Mapping[bytes, str] = {}
        #: The users of each channel, and the channels to which the connection is subscribed.
        self._wanted: dict[bytes, list[ChannelUser]] = {}
        self._subscribed = set[bytes]()
        self._changed = asyncio.Event()
        self._blocked = False
        #: How many blocking reads were sent.
        self._reads = 0
        #: Bytes of the largest entry so far; assumed to be large until there is one.
        self._largest: int | None = None
        self._block_ms = _BLOCK_MS
        self._wire: RedisConnection | None = None
        self._id = 0
        self._unblocking: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._serve(), name="chancy redis streams")

    def add(self, key: str, user: object, last: str, came: OnEntries) -> None:
        """Wait for an entry after a position; replaces an earlier call of the same user."""
        self._waiting.setdefault(key.encode(), {})[user] = (last, came)
        self._change()

    def remove(self, key: str, user: object) -> None:
        """Stop waiting for a stream."""
        users = self._waiting.get(key.encode(), {})
        if users.pop(user, None) and not users:
            del self._waiting[key.encode()]

    async def arrived(self, key: str, last: str) -> None:
        """Wait until a stream has an entry after a position. Raises `BrokerError`."""
        found: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def came(error: BrokerError | None) -> None:
            if found.done():
                return
            if error is None:
                found.set_result(None)
            else:
                found.set_exception(error)

        self.add(key, found, last, came)
        try:
            await found
        finally:
            self.remove(key, found)

    async def subscribe(
        self,
        channels: Collection[bytes],
        on_message: Callable[[bytes], None],
        on_lost: Callable[[str], None],
    ) -> ChannelUser:
        """Receive the messages of channels until `unsubscribe`. Raises `BrokerError`.

        :param on_lost: called with the reason when no more messages will arrive.
        """
        user = ChannelUser(on_message, on_lost)
        for channel in channels:
            self._wanted.setdefault(channel, []).append(user)
        self._change()
        try:
            await user.begun
        except BaseException:
            self.unsubscribe(user)
            raise
        if not any(user in users for users in self._wanted.values()):
            raise BrokerUnavailable("the connection has ended")
        return user

    def unsubscribe(self, user: ChannelUser) -> None:
        """End `subscribe`."""
        for channel, users in list(self._wanted.items()):
            if user in users:
                users.remove(user)
                if not users:
                    del self._wanted[channel]
        self._change()

    def renew(self, why: str) -> None:
        """Replace a connection that is dead."""
        if self._wire is not None:
            self._wire.close(why)

    async def close(self) -> None:
        tasks = [task for task in (self._task, self._unblocking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._drop()

    def _change(self) -> None:
        if not self._blocked:
            self._changed.set()
        elif self._unblocking is None and self._block_ms > _SHORT_MS and self._misses():
            self._unblocking = asyncio.create_task(self._unblock(), name="unblock")

    async def _serve(self) -> None:
        backoff = Backoff(base_s=0.05, cap_s=2.0)
        while True:
            self._changed.clear()
            try:
                found = await self._turn()
                for key, one in found.items():
                    self._call(key, one)
            except BrokerError as error:
                await self._fail(error, backoff)
                continue
            except Exception as error:
                # For example from a credential provider. Users would wait forever.
                await self._fail(BrokerUnavailable(f"{type(error).__name__}: {error}"), backoff)
                continue
            if self._wire is not None:
                backoff.reset()
            if any(isinstance(one, BrokerError) for one in found.values()):
                await asyncio.sleep(_LATE_S)
            elif found:
                # Most of the streams are waited for again soon: one read for all saves others.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SOON_S):
                        await self._changed.wait()

    async def _fail(self, error: BrokerError, backoff: Backoff) -> None:
        """Report a failed read to the users of streams, and to all users if the connection is
        gone; then pause."""
        waiting, self._waiting = self._waiting, {}
        if self._wire is None:
            wanted, self._wanted = self._wanted, {}
            for user in {user for users in wanted.values() for user in users}:
                user.fail(error)
        if not waiting:
            return
        pause_s = backoff.next_s()
        logger.warning("stream_waiter_failed next_try_s=%.1f error=%s", pause_s, error)
        for users in waiting.values():
            for _, came in users.values():
                came(error)
        await asyncio.sleep(pause_s)

    def _call(self, key: bytes, found: str | BrokerError) -> None:
        """Call the users of a stream that have not read an entry, or all if it cannot be read."""
        users = self._waiting.pop(key, {})
        if isinstance(found, BrokerError):
            logger.warning("stream_waiter_failed next_try_s=%.1f error=%s", _LATE_S, found)
        rest = {}
        for user, (last, came) in users.items():
            if isinstance(found, BrokerError):
                came(found)
            elif entry_order(last) < entry_order(found):
                came(None)
            else:
                rest[user] = (last, came)
        if rest:
            self._waiting[key] = rest

    def _positions(self) -> dict[bytes, str]:
        """The lowest position of the users of each stream."""
        return {
            key: min((last for last, _ in users.values()), key=entry_order)
            for key, users in self._waiting.items()
        }

    async def _turn(self) -> Mapping[bytes, str | BrokerError]:
        """Wait for entries of the streams, or for a change; returns the id of an entry of each
        stream that has one, or the error of a stream that cannot be read."""
        try:
            if self._wire is None and (self._waiting or self._wanted):
                self._wire = await self._client.wire(self._key, self._on_message)
                self._wire.ended.add_done_callback(lambda _: self._changed.set())
            if (wire := self._wire) is not None:
                if wire.ended.done():
                    raise BrokerUnavailable(f"the connection has ended: {wire.ended.result()}")
                await self._update_channels(wire)
                if self._waiting:
                    return await self._read(wire)
            await self._changed.wait()
        except BaseException as error:
            if isinstance(error, StatementFailed) and self._wire is not None:
                raise  # the connection still works
            # The next turn gets a fresh connection, to the server that has the key by then.
            self._drop()
            if isinstance(error, BrokerError):
                self._client.doubt()
            raise
        return {}

    async def _update_channels(self, wire: RedisConnection) -> None:
        """Subscribe the connection to the wanted channels and no others."""
        while changed := self._wanted.keys() ^ self._subscribed:
            for channel in changed:
                begins = channel in self._wanted
                command = "SUBSCRIBE" if begins else "UNSUBSCRIBE"
                try:
                    await self._command(wire, command, channel)
                except StatementFailed as error:
                    if not begins:
                        raise BrokerUnavailable(str(error)) from error
                    # The error is for the users of this channel alone.
                    for user in tuple(self._wanted.get(channel, ())):
                        self.unsubscribe(user)
                        user.fail(error)
                    continue
                if begins:
                    self._subscribed.add(channel)
                else:
                    self._subscribed.discard(channel)
        for users in self._wanted.values():
            for user in users:
                if not user.begun.done():
                    user.begun.set_result(None)

    def _has_channels(self) -> bool:
        """Whether the connection is subscribed to the wanted channels, and their users know."""
        return self._wanted.keys() == self._subscribed and all(
            user.begun.done() for users in self._wanted.values() for user in users
        )

    async def _read(self, wire: RedisConnection) -> Mapping[bytes, str | BrokerError]:
        if not self._id:
            self._id = await self._command(wire, "CLIENT", "ID")
        asked = self._positions()
        largest = _MOST_BYTES if self._largest is None else self._largest
        if len(asked) * largest > _MOST_BYTES:
            found = await self._look(wire, asked)
            if found or asked != self._positions():
                return found
        if not asked or not self._has_channels():
            return {}
        try:
            entries = await self._block(wire, asked)
        except StatementFailed:
            # The read of all streams fails, although only one may be the cause.
            if len(asked) == 1 or not (found := await self._look(wire, asked)):
                raise
            return found
        for [[_, fields]] in entries.values():
            self._largest = max(self._largest or 0, sum(map(len, fields)))
        return {key: xid.decode() for key, [[xid, _]] in entries.items()}

    async def _look(
        self, wire: RedisConnection, asked: Mapping[bytes, str]
    ) -> Mapping[bytes, str | BrokerError]:
        """`_read` without waiting, and without receiving the entries."""
        text = script_of("transport.ready").text
        streams = [*asked]
        for start in range(0, len(streams), _MOST_KEYS):
            keys = streams[start : start + _MOST_KEYS]
            positions = (asked[key] for key in keys)
            ready = await self._command(wire, "EVAL", text, len(keys), *keys, *positions)
            if ready:
                return {
                    keys[at]: StatementFailed(
                        f"Redis refused a command: {error.decode(errors='replace')}"
                    )
                    if error
                    else xid.decode()
                    for at, xid, error in ready
                }
        return {}

    async def _block(
        self, wire: RedisConnection, asked: Mapping[bytes, str]
    ) -> Mapping[bytes, Any]:
        block_ms = self._block_ms
        parts: list[Value] = ["XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS"]
        parts += [*asked, *asked.values()]
        self._asked, self._blocked = asked, True
        self._reads += 1
        try:
            return await self._command(wire, *parts, block_s=block_ms / 1000) or {}
        finally:
            self._blocked = False

    async def _command(self, wire: RedisConnection, *parts: Value, block_s: float = 0.0) -> Reply:
        """The reply to a command. Raises `BrokerError`."""
        with translated():
            return await wire.command(parts, self._client.settings.timeout_s + block_s)

    def _on_message(self, message: Sequence[Any]) -> None:
        if message[0] == b"message":
            for user in tuple(self._wanted.get(message[1], ())):
                user.on_message(message[2])

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        self._id = 0
        self._subscribed.clear()
        if wire is not None:
            wire.close()

    def _misses(self) -> bool:
        """Whether the blocked read lacks a stream, waits for another position, or delays a
        subscription."""
        asked = self._asked
        return self._blocked and (
            not self._has_channels()
            or any(asked.get(key) != last for key, last in self._positions().items())
        )

    async def _unblock(self) -> None:
        pause_s = _SOON_S
        try:
            while self._misses():
                try:
                    # Retried: a read that has not been sent yet cannot be unblocked, and would
                    # block for four seconds.
                    reads = self._reads
                    if await self._client.raw(self._key, "CLIENT", "UNBLOCK", self._id):
                        if reads == self._reads:
                            return
                        continue  # another one has begun in the meantime
                except StatementFailed as error:
                    logger.warning("stream_unblock_refused error=%s", error)
                    self._block_ms = _SHORT_MS
                    return
                except BrokerError:
                    pause_s = _LATE_S
                await asyncio.sleep(pause_s)
        finally:
            self._unblocking = None


#: The watches of each client, by event loop and, in a cluster, by tag.
_WATCHES: WeakKeyDictionary[
    RedisClient, dict[tuple[asyncio.AbstractEventLoop, str], StreamWatch]
] = WeakKeyDictionary()


@asynccontextmanager
async def watching(client: RedisClient, key: str) -> AsyncGenerator[StreamWatch]:
    """The watch of the running loop: one for all keys, in a cluster for those of one tag."""
    tag = key.partition("}")[0] if client.clustered else ""
    place = (asyncio.get_running_loop(), tag)
    watches = _WATCHES.setdefault(client, {})
    if place not in watches:
        watches[place] = StreamWatch(client, key)
    watch = watches[place]
    watch.users += 1
    try:
        yield watch
    finally:
        watch.users -= 1
        if not watch.users:
            del watches[place]
            await watch.close()

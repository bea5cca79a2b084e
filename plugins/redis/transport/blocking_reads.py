"""What a process waits for: entries of streams, and messages of channels, on one connection."""

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

#: Milliseconds that a blocking read waits for entries, and if the user may not unblock it.
_BLOCK_MS, _SHORT_MS = 4_000, 100
#: Seconds to the next attempt to unblock a read, and that a read waits for more streams.
_SOON_S, _LATE_S = 0.004, 0.1
#: Most bytes of entries that a read may return: Redis closes a connection with channels for which it
#: has to store 32 MiB.
_MOST_BYTES = 16 * 1024 * 1024

#: Called once: None if there are entries, or the error for which that is unknown.
Came = Callable[[BrokerError | None], None]


def entry_order(xid: str) -> tuple[int, int]:
    """The order of an entry's id in its stream."""
    ms, _, seq = xid.partition("-")
    return int(ms), int(seq or 0)


class Hearing:
    """Channels that one user hears.

    :ivar begun: done once the server sends their messages.
    """

    __slots__ = ("begun", "hear", "lost")

    def __init__(self, hear: Callable[[bytes], None], lost: Callable[[str], None]) -> None:
        self.hear = hear
        self.lost = lost
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: BrokerError) -> None:
        if self.begun.done():
            self.lost(str(error))
        else:
            self.begun.set_exception(error)


class StreamWatch:
    """Waits for entries of streams, and hears channels, of one server or of one slot of a cluster.

    One task uses the connection: what is added while it blocks in a read ends that read.
    """

    def __init__(self, client: RedisClient, key: str) -> None:
        self.users = 0
        self._client = client
        self._key = key
        #: The position of each user of a stream, and what to call.
        self._waiting: dict[bytes, dict[object, tuple[str, Came]]] = {}
        # The positions of the current read.
        self._asked: Mapping[bytes, str] = {}
        #: Who hears each channel, and the channels that the connection hears.
        self._wanted: dict[bytes, list[Hearing]] = {}
        self._heard = set[bytes]()
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

    def add(self, key: str, user: object, last: str, came: Came) -> None:
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

    async def hear(
        self,
        channels: Collection[bytes],
        hear: Callable[[bytes], None],
        lost: Callable[[str], None],
    ) -> Hearing:
        """Have the messages of channels from now on, until `ignore`. Raises `BrokerError`.

        :param lost: called with the reason when no more of them will arrive.
        """
        hearing = Hearing(hear, lost)
        for channel in channels:
            self._wanted.setdefault(channel, []).append(hearing)
        self._change()
        try:
            await hearing.begun
        except BaseException:
            self.ignore(hearing)
            raise
        if not any(hearing in hearings for hearings in self._wanted.values()):
            raise BrokerUnavailable("the connection has ended")
        return hearing

    def ignore(self, hearing: Hearing) -> None:
        """End `hear`."""
        for channel, hearings in list(self._wanted.items()):
            if hearing in hearings:
                hearings.remove(hearing)
                if not hearings:
                    del self._wanted[channel]
        self._change()

    def renew(self, why: str) -> None:
        """Replace the connection, as one that is dead."""
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
                # As of a provider of credentials: users would wait for ever.
                await self._fail(BrokerUnavailable(f"{type(error).__name__}: {error}"), backoff)
                continue
            if self._wire is not None:
                backoff.reset()
            if any(isinstance(one, BrokerError) for one in found.values()):
                await asyncio.sleep(_LATE_S)
            elif found:
                # They mostly become idle again soon: waiting for them saves a read.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SOON_S):
                        await self._changed.wait()

    async def _fail(self, error: BrokerError, backoff: Backoff) -> None:
        """Report that a read has failed to those that wait, and to all if the connection is gone;
        pause before the next read."""
        waiting, self._waiting = self._waiting, {}
        if self._wire is None:
            wanted, self._wanted = self._wanted, {}
            for hearing in {hearing for hearings in wanted.values() for hearing in hearings}:
                hearing.fail(error)
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
                await self._tune(wire)
                if self._waiting:
                    return await self._read(wire)
            await self._changed.wait()
        except BaseException as error:
            if isinstance(error, StatementFailed) and self._wire is not None:
                raise  # the connection is as good as before
            # The next turn gets a fresh connection, to the server that has the key by then.
            self._drop()
            if isinstance(error, BrokerError):
                self._client.doubt()
            raise
        return {}

    async def _tune(self, wire: RedisConnection) -> None:
        """Have the connection hear the wanted channels and no others."""
        while changed := self._wanted.keys() ^ self._heard:
            for channel in changed:
                begins = channel in self._wanted
                command = "SUBSCRIBE" if begins else "UNSUBSCRIBE"
                try:
                    await self._command(wire, command, channel)
                except StatementFailed as error:
                    if not begins:
                        raise BrokerUnavailable(str(error)) from error
                    # It is refused to the users of this channel alone.
                    for hearing in tuple(self._wanted.get(channel, ())):
                        self.ignore(hearing)
                        hearing.fail(error)
                    continue
                if begins:
                    self._heard.add(channel)
                else:
                    self._heard.discard(channel)
        for hearings in self._wanted.values():
            for hearing in hearings:
                if not hearing.begun.done():
                    hearing.begun.set_result(None)

    def _tuned(self) -> bool:
        """Whether the connection hears the wanted channels, and their users know it."""
        return self._wanted.keys() == self._heard and all(
            hearing.begun.done() for hearings in self._wanted.values() for hearing in hearings
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
        if not asked or not self._tuned():
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
        """`_turn` without waiting, and without reading the entries."""
        keys, text = [*asked], script_of("transport.ready").text
        ready = await self._command(wire, "EVAL", text, len(keys), *keys, *asked.values())
        return {
            keys[at]: StatementFailed(f"Redis refused a command: {error.decode(errors='replace')}")
            if error
            else xid.decode()
            for at, xid, error in ready
        }

    async def _block(self, wire: RedisConnection, asked: Mapping[bytes, str]) -> Mapping[bytes, Any]:
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
            for hearing in tuple(self._wanted.get(message[1], ())):
                hearing.hear(message[2])

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        self._id = 0
        self._heard.clear()
        if wire is not None:
            wire.close()

    def _misses(self) -> bool:
        """Whether the current read lacks a stream, waits for another position, or delays the
        subscription to a channel."""
        asked = self._asked
        return self._blocked and (
            not self._tuned()
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

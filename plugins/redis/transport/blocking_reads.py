"""Blocking reads: one connection for all streams that a process waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

from chancy.clock import Backoff
from chancy.errors import BrokerError, StatementFailed
from chancy.plugins.redis.transport.connection import RedisConnection
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import Value
from chancy.plugins.redis.transport.translation import translated

logger = logging.getLogger("chancy.redis.streams")

#: Milliseconds that a blocking read waits for entries, and if the user may not unblock it.
_BLOCK_MS, _SHORT_MS = 4_000, 100
#: Seconds to the next attempt to unblock a read, and that a read waits for more streams.
_SOON_S, _LATE_S = 0.004, 0.1

#: Called once: None if there are entries, or the error for which that is unknown.
Came = Callable[[BrokerError | None], None]


def entry_order(xid: str) -> tuple[int, int]:
    """The order of an entry's id in its stream."""
    ms, _, seq = xid.partition("-")
    return int(ms), int(seq or 0)


class StreamWatch:
    """Waits for entries of streams of one server, or of one slot of a cluster."""

    def __init__(self, client: RedisClient, key: str) -> None:
        self.users = 0
        self._client = client
        self._key = key
        #: The position of each user of a stream, and what to call.
        self._waiting: dict[bytes, dict[object, tuple[str, Came]]] = {}
        # The positions of the current read.
        self._asked: Mapping[bytes, str] = {}
        self._changed = asyncio.Event()
        self._blocked = False
        self._block_ms = _BLOCK_MS
        self._wire: RedisConnection | None = None
        self._id = 0
        self._unblocking: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._serve(), name="chancy redis streams")

    def add(self, key: str, user: object, last: str, came: Came) -> None:
        """Wait for an entry after a position; replaces an earlier call of the same user."""
        self._waiting.setdefault(key.encode(), {})[user] = (last, came)
        if not self._blocked:
            self._changed.set()
        elif self._unblocking is None and self._block_ms > _SHORT_MS and self._misses():
            self._unblocking = asyncio.create_task(self._unblock(), name="unblock")

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

    async def close(self) -> None:
        tasks = [task for task in (self._task, self._unblocking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._drop()

    async def _serve(self) -> None:
        backoff = Backoff(base_s=0.05, cap_s=2.0)
        while True:
            self._changed.clear()
            if not self._waiting:
                await self._changed.wait()
                continue
            try:
                found = await self._read()
            except BrokerError as error:
                pause_s = backoff.next_s()
                logger.warning("stream_waiter_failed next_try_s=%.1f error=%s", pause_s, error)
                waiting, self._waiting = self._waiting, {}
                for users in waiting.values():
                    for _, came in users.values():
                        came(error)
                await asyncio.sleep(pause_s)
                continue
            backoff.reset()
            for key, [[xid, _]] in found or ():
                self._call(key, xid.decode())
            if found:
                # They mostly become idle again soon: waiting for them saves a read.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SOON_S):
                        await self._changed.wait()

    def _call(self, key: bytes, xid: str) -> None:
        """Call the users of a stream that have not read an entry."""
        users = self._waiting.pop(key, {})
        rest = {}
        for user, (last, came) in users.items():
            if entry_order(last) < entry_order(xid):
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

    async def _read(self) -> Any:
        timeout_s = self._client.settings.timeout_s
        self._asked = self._positions()
        self._blocked = True
        try:
            if self._wire is None:
                self._wire = await self._client.wire(self._key)
                with translated():
                    self._id = await self._wire.command(("CLIENT", "ID"), timeout_s)
            parts: list[Value] = ["XREAD", "COUNT", 1, "BLOCK", self._block_ms, "STREAMS"]
            parts += [*self._asked, *self._asked.values()]
            with translated():
                return await self._wire.command(parts, timeout_s + self._block_ms / 1000)
        except BaseException as error:
            # The next read gets a fresh connection, to the server that has the key by then.
            self._drop()
            if isinstance(error, BrokerError):
                self._client.doubt()
            raise
        finally:
            self._blocked = False

    def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _misses(self) -> bool:
        """Whether the current read lacks a stream, or waits for another position."""
        asked = self._asked
        return self._blocked and any(
            asked.get(key) != last for key, last in self._positions().items()
        )

    async def _unblock(self) -> None:
        pause_s = _SOON_S
        try:
            while self._misses():
                try:
                    # Retried: a read that has not been sent yet cannot be unblocked, and would
                    # block for four seconds.
                    if await self._client.raw(self._key, "CLIENT", "UNBLOCK", self._id):
                        return
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

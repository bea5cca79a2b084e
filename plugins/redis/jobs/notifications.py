"""Notifications: one connection per process and topic, shared by its subscriptions.

A worker receives no completions of jobs unless it waits for some: the server sends each message to
every connection of its channel, and 1,000 workers would receive each completion that one process
waits for.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from chancy.broker.notices import Notice, NoticeKind, Topic, parse
from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.transport.connection import RedisConnection
from chancy.plugins.redis.transport.shard import ShardClient
from chancy.plugins.redis.transport.translation import translated

logger = logging.getLogger("chancy.redis")

#: Most notifications that a subscription buffers for a slow reader; older ones are dropped.
MAX_NOTICES = 10_000
_SUFFIXES = {Topic.WORK: b":notices", Topic.FINISHED: b":ends", Topic.RELAY: b":relay"}


class Notifications:
    """The connection of a process to the channel of a topic, open while there are subscriptions.

    :param address: names a second channel, for this process alone; see ``lua/_wake.lua``.
    """

    def __init__(self, client: ShardClient, topic: Topic, address: bytes) -> None:
        self._client = client
        self._topic = topic
        self._address = address
        self._subscriptions: list[RedisSubscription] = []
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def subscribe(self) -> RedisSubscription:
        """Subscribe to the topic. Raises `BrokerError`."""
        async with self._starting:
            if self._reading is None or self._reading.done():
                await self._start()
        subscription = RedisSubscription(self, self._client, self._topic)
        self._subscriptions.append(subscription)
        return subscription

    async def leave(self, subscription: RedisSubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        if not self._subscriptions:
            await self._stop()

    async def close(self) -> None:
        """Close the connection; the remaining subscriptions receive nothing more."""
        await self._stop()
        self._starting = asyncio.Lock()  # for the next event loop

    async def _stop(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _start(self) -> None:
        await self._stop()
        # A cluster forwards messages to every node; they arrive at this one first.
        channel = self._client.tag.encode() + _SUFFIXES[self._topic]
        connection = await self._client.redis.wire(self._client.tag, self._on_message)
        try:
            with translated():
                await connection.command(
                    ("SUBSCRIBE", channel, channel + b":" + self._address),
                    self._client.settings.connect_timeout_s,
                )
        except BaseException:
            connection.close()
            raise
        self._reading = asyncio.create_task(self._read(connection), name="chancy redis notices")

    async def _read(self, connection: RedisConnection) -> None:
        """Wait until the connection ends, or until cancelled, and close the subscriptions."""
        reason = "the subscription is closed"
        try:
            await asyncio.wait([connection.ended])
            reason = connection.ended.result()
        finally:
            for subscription in self._subscriptions:
                subscription.stop(reason)
            connection.close()

    def _on_message(self, message: Any) -> None:
        if not isinstance(message, list) or len(message) != 3 or message[0] != b"message":
            return
        notice = parse(message[2].decode(errors="replace"))
        if notice is not None:
            for subscription in self._subscriptions:
                subscription.on_notice(notice)


class RedisSubscription:
    """A subscription to one topic; see `chancy.broker.notices.Subscription`."""

    def __init__(self, owner: Notifications, client: ShardClient, topic: Topic) -> None:
        self.topic = topic
        self._owner = owner
        self._client = client
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._event = asyncio.Event()
        self._nonce = ""
        self._answered = asyncio.Event()
        self._stopped: str | None = None
        self._handle: Callable[[Notice], bool] | None = None

    def on_notice(self, notice: Notice) -> None:
        if notice.kind is NoticeKind.PROBE and notice.token == self._nonce:
            self._answered.set()
            return
        handle, self._handle = self._handle, None
        if handle is not None and handle(notice):
            self._handle = handle
            return
        self._notices.append(notice)
        self._event.set()

    def stop(self, reason: str) -> None:
        self._stopped = reason
        self._event.set()
        self._answered.set()

    async def receive(
        self, timeout_s: float, handle: Callable[[Notice], bool] | None = None
    ) -> list[Notice]:
        if not self._notices and self._stopped is None:
            self._handle = handle
            try:
                async with asyncio.timeout(timeout_s):
                    await self._event.wait()
            except TimeoutError:
                # One that was kept in the same loop iteration is returned.
                pass
            finally:
                self._handle = None
        return self._take()

    def _take(self) -> list[Notice]:
        if not self._notices and self._stopped is not None:
            raise BrokerUnavailable(f"the subscription receives no notifications: {self._stopped}")
        notices = list(self._notices)
        self._notices.clear()
        if self._stopped is None:
            self._event.clear()
        return notices

    async def probe(self, timeout_s: float) -> list[Notice]:
        self._nonce = uuid.uuid4().hex
        self._answered.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.command(
                    "PUBLISH",
                    self._client.tag.encode() + _SUFFIXES[self.topic],
                    Notice(NoticeKind.PROBE, self._nonce).payload(),
                )
                if self._stopped is None:
                    await self._answered.wait()
        except TimeoutError:
            # The next subscription opens a new connection.
            await self._owner.close()
            raise BrokerUnavailable(
                f"a probe did not arrive within {timeout_s:g} s: the connection is dead"
            ) from None
        return self._take()

    async def close(self) -> None:
        self.stop("the subscription is closed")
        await self._owner.leave(self)

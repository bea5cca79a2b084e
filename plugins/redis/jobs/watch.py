"""Notices: one connection of a process hears them, and tells all of its subscriptions.

It also hears what is given to the workers of the process.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from chancy.broker.notices import Notice, NoticeKind, Topic, parse
from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.jobs.claim import RedisClaims
from chancy.plugins.redis.transport.clients import translated
from chancy.plugins.redis.transport.connection import Connector, RedisConnection
from chancy.plugins.redis.transport.shard_client import ShardClient

logger = logging.getLogger("chancy.redis")

#: Notices that a subscription keeps for a slow reader: the last ones.
MAX_NOTICES = 10_000
_WORK = b":notices"
_SUFFIXES = {Topic.WORK: _WORK, Topic.FINISHED: b":ends", Topic.RELAY: b":relay"}


class Notifications:
    """Keeps the connection as long as there are subscriptions."""

    def __init__(self, link: ShardClient, claims: RedisClaims) -> None:
        self._link = link
        self._claims = claims
        self._desk = link.tag.encode() + b":desk:" + claims.desk.name
        self._subscriptions: list[RedisSubscription] = []
        self._reading: asyncio.Task[None] | None = None
        self._beginning = asyncio.Lock()

    async def subscribe(self, topic: Topic) -> RedisSubscription:
        """Hear a topic from now on. Raises `BrokerError`."""
        async with self._beginning:
            if self._reading is None or self._reading.done():
                await self._begin()
        subscription = RedisSubscription(self, self._link, topic)
        self._subscriptions.append(subscription)
        return subscription

    async def leave(self, subscription: RedisSubscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        if not any(one.topic is Topic.WORK for one in self._subscriptions):
            self._claims.attended = False
        if not self._subscriptions:
            await self._end()

    async def close(self) -> None:
        """Let go of the connection; subscriptions that are left hear no more."""
        await self._end()
        self._beginning = asyncio.Lock()  # of the next event loop

    async def _end(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def _begin(self) -> None:
        await self._end()
        # In a cluster a notice reaches every node, and this one first.
        settings = self._link.home.settings
        channels = [self._link.tag.encode() + suffix for suffix in _SUFFIXES.values()]
        with translated():
            wire = await Connector(settings).wire(self._hear)
            # One answer for each channel: the first one says that all of them are heard.
            await wire.command(("SUBSCRIBE", *channels, self._desk), settings.connect_timeout_s)
        self._reading = asyncio.create_task(self._follow(wire), name="chancy redis notices")

    async def _follow(self, wire: RedisConnection) -> None:
        """Hear until the connection ends, or this is cancelled."""
        why = "the subscription is closed"
        try:
            await asyncio.wait([wire.ended])
            why = wire.ended.result()
        finally:
            self._claims.attended = False
            for subscription in self._subscriptions:
                subscription.end(why)
            wire.close()

    def _hear(self, answer: Any) -> None:
        if not isinstance(answer, list) or len(answer) != 3 or answer[0] != b"message":
            return
        if answer[1] == self._desk:
            self._give(answer[2])
        else:
            notice = parse(answer[2].decode(errors="replace"))
            if notice is not None:
                self._tell(answer[1], notice)

    def attend(self) -> None:
        """Workers may wait for what is pushed: somebody listens for them."""
        if self._reading is not None and not self._reading.done():
            self._claims.attended = True

    def _give(self, payload: bytes) -> None:
        try:
            queue = self._claims.desk.hear(payload)
        except (struct.error, ValueError) as error:
            # Anybody may send anything on a channel.
            logger.warning("handoff_unreadable bytes=%d error=%s", len(payload), error)
            return
        if queue is not None:
            self._tell(_WORK, Notice(NoticeKind.WAKE, queue))

    def _tell(self, channel: bytes, notice: Notice) -> None:
        for subscription in self._subscriptions:
            if channel.endswith(_SUFFIXES[subscription.topic]):
                subscription.hear(notice)


class RedisSubscription:
    """What one listener hears."""

    def __init__(self, watch: Notifications, link: ShardClient, topic: Topic) -> None:
        self.topic = topic
        self._watch = watch
        self._link = link
        self._heard: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._event = asyncio.Event()
        self._nonce = ""
        self._answered = asyncio.Event()
        self._ended: str | None = None
        self._first: Callable[[Notice], None] | None = None

    def hear(self, notice: Notice) -> None:
        if notice.kind is NoticeKind.PROBE:
            # All that share the topic hear it: whom it woke would look and probe in turn.
            if notice.token == self._nonce:
                self._answered.set()
            return
        first, self._first = self._first, None
        if first is not None:
            first(notice)
        self._heard.append(notice)
        self._event.set()

    def end(self, why: str) -> None:
        self._ended = why
        self._event.set()
        self._answered.set()

    async def receive(
        self, timeout_s: float, first: Callable[[Notice], None] | None = None
    ) -> list[Notice]:
        if first is not None and self.topic is Topic.WORK:
            self._watch.attend()
        if not self._heard and self._ended is None:
            self._first = first
            try:
                async with asyncio.timeout(timeout_s):
                    await self._event.wait()
            except TimeoutError:
                # One that came in the same turn of the loop was told to `first`.
                pass
            finally:
                self._first = None
        return self._take()

    def _take(self) -> list[Notice]:
        if not self._heard and self._ended is not None:
            raise BrokerUnavailable(f"notices do not arrive: {self._ended}")
        heard = list(self._heard)
        self._heard.clear()
        if self._ended is None:
            self._event.clear()
        return heard

    async def probe(self, timeout_s: float) -> list[Notice]:
        self._nonce = uuid.uuid4().hex
        self._answered.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._link.command(
                    "PUBLISH",
                    self._link.tag.encode() + _SUFFIXES[self.topic],
                    Notice(NoticeKind.PROBE, self._nonce).payload(),
                )
                if self._ended is None:
                    await self._answered.wait()
        except TimeoutError:
            # Whoever subscribes next is to have another connection.
            await self._watch.close()
            raise BrokerUnavailable(
                f"a notice sent to ourselves did not arrive within {timeout_s:g} s: the line is"
                " dead"
            ) from None
        return self._take()

    async def close(self) -> None:
        self.end("the subscription is closed")
        await self._watch.leave(self)

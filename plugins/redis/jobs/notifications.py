"""Notifications: one channel per topic, to which a process subscribes once for all its users.

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
from contextlib import AsyncExitStack

from chancy.broker.notices import Notice, NoticeKind, Topic, parse
from chancy.errors import BrokerUnavailable
from chancy.plugins.redis.transport.blocking_reads import ChannelUser, StreamWatch, watching
from chancy.plugins.redis.transport.shard import ShardClient

logger = logging.getLogger("chancy.redis")

#: Most notifications that a subscription buffers for a slow reader; older ones are dropped.
MAX_NOTICES = 10_000
_SUFFIXES = {Topic.WORK: b":notices", Topic.FINISHED: b":ends", Topic.RELAY: b":relay"}


class Notifications:
    """The channel of a topic, to which the process is subscribed while it has `RedisSubscription`s.

    :param address: names a second channel, for this process alone; see ``lua/_wake.lua``.
    """

    def __init__(self, client: ShardClient, topic: Topic, address: bytes) -> None:
        self._client = client
        channel = client.tag.encode() + _SUFFIXES[topic]
        self._channels = (channel, channel + b":" + address)
        self._topic = topic
        self._subscriptions: list[RedisSubscription] = []
        self._channel: tuple[StreamWatch, ChannelUser] | None = None
        self._watching = AsyncExitStack()
        self._starting = asyncio.Lock()

    async def subscribe(self) -> RedisSubscription:
        """Subscribe to the topic. Raises `BrokerError`."""
        async with self._starting:
            if self._channel is None:
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
        """Leave the channel; the remaining subscriptions receive nothing more."""
        await self._stop()
        self._starting = asyncio.Lock()  # for the next event loop

    async def _stop(self) -> None:
        if self._channel is not None:
            watch, user = self._channel
            watch.unsubscribe(user)
        self._on_lost("the subscription is closed")
        await self._watching.aclose()

    def renew(self) -> None:
        """Replace the connection, which is dead."""
        if self._channel is not None:
            watch, _ = self._channel
            watch.renew("a probe did not arrive")

    async def _start(self) -> None:
        await self._watching.aclose()  # of a connection that was lost
        # A cluster forwards messages to every node; they arrive at this one first.
        async with AsyncExitStack() as stack:
            watch = await stack.enter_async_context(watching(self._client.redis, self._client.tag))
            user = await watch.subscribe(self._channels, self._on_message, self._on_lost)
            self._watching, self._channel = stack.pop_all(), (watch, user)

    def _on_lost(self, reason: str) -> None:
        self._channel = None
        for subscription in self._subscriptions:
            subscription.stop(reason)

    def _on_message(self, message: bytes) -> None:
        notice = parse(message.decode(errors="replace"))
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
                # A notification of the same loop iteration may have arrived: `_take` returns it.
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
        sent = False
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.command(
                    "PUBLISH",
                    self._client.tag.encode() + _SUFFIXES[self.topic],
                    Notice(NoticeKind.PROBE, self._nonce).payload(),
                )
                sent = True
                if self._stopped is None:
                    await self._answered.wait()
        except TimeoutError:
            if sent:
                # The next subscription uses a new connection.
                self._owner.renew()
            raise BrokerUnavailable(
                f"a probe did not arrive within {timeout_s:g} s: the connection is dead"
            ) from None
        return self._take()

    async def close(self) -> None:
        self.stop("the subscription is closed")
        await self._owner.leave(self)

"""Notices: one connection of a process hears them, and tells all of its subscriptions."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis as AsyncRedis

from chancy.errors import BrokerUnavailable
from chancy.notice import Kind, Notice, Topic, parse
from chancy.plugins.redis.client import connect, translated
from chancy.plugins.redis.link import Link

#: Notices that a subscription keeps for a slow reader: the last ones.
MAX_NOTICES = 10_000
_SUFFIXES = {Topic.WORK: b":notices", Topic.FINISHED: b":ends", Topic.RELAY: b":relay"}


class Watch:
    """Keeps the connection as long as there are subscriptions."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._subscriptions: list[RedisSubscription] = []
        self._reading: asyncio.Task[None] | None = None
        self._client: AsyncRedis | None = None
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
        if not self._subscriptions:
            await self.close()

    async def close(self) -> None:
        """Let go of the connection; subscriptions that are left hear no more."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _begin(self) -> None:
        await self.close()
        # In a cluster a notice reaches every node, and this one first.
        settings = self._link.home.settings
        client = connect(settings, socket_timeout=None)
        assert isinstance(client, AsyncRedis)
        connection: Any = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        channels = [self._link.tag.encode() + suffix for suffix in _SUFFIXES.values()]
        try:
            with translated():
                async with asyncio.timeout(settings.connect_timeout_s):
                    await connection.connect()
                    await connection.send_command("SUBSCRIBE", *channels)
                    for _ in channels:
                        await connection.read_response()
        except BaseException:
            await connection.disconnect(nowait=True)
            await client.aclose()
            raise
        self._client = client
        self._reading = asyncio.create_task(self._read(connection), name="chancy redis notices")

    async def _read(self, connection: Any) -> None:
        why = "the subscription is closed"
        try:
            while True:
                with translated():
                    answer: Any = await connection.read_response()
                if isinstance(answer, list) and len(answer) == 3 and answer[0] == b"message":
                    notice = parse(answer[2].decode(errors="replace"))
                    if notice is not None:
                        self._tell(answer[1], notice)
        except BrokerUnavailable as error:
            why = str(error)
        finally:
            for subscription in self._subscriptions:
                subscription.end(why)
            await connection.disconnect(nowait=True)

    def _tell(self, channel: bytes, notice: Notice) -> None:
        for subscription in self._subscriptions:
            if channel.endswith(_SUFFIXES[subscription.topic]):
                subscription.hear(notice)


class RedisSubscription:
    """What one listener hears."""

    def __init__(self, watch: Watch, link: Link, topic: Topic) -> None:
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
        if notice.kind is Kind.PROBE:
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
                    Notice(Kind.PROBE, self._nonce).payload(),
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

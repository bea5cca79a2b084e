"""A subscription to notifications that is probed, and replaced when it fails."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from chancy.broker.contract import Broker
from chancy.broker.notices import Notice, Subscription, Topic
from chancy.clock import Backoff, Clock, is_being_cancelled
from chancy.errors import ChancyError

logger = logging.getLogger("chancy.broker")

#: Seconds without a notification after which the listener probes its subscription, at most. All
#: listeners of a topic receive the probe, which proves their subscriptions too: since they wait for
#: different times, one of them probes for all. 1,000 that probed at once would receive 1,000,000.
_PROBE_EVERY_S = 8.0
#: Seconds that a probe may take.
_PROBE_TIMEOUT_S = 4.0
#: Notifications that are handled as they arrive, between two turns of the listener.
_HANDLED = 100


class Listener:
    """Maintains a subscription: probes it by round trips, and replaces it when a probe fails.

    :param on_notice: called with each notification.
    :param on_resumed: called whenever a subscription starts: earlier notifications are lost.
    """

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        topic: Topic,
        *,
        on_notice: Callable[[Notice], None],
        on_resumed: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._topic = topic
        self._on_notice = on_notice
        self._on_resumed = on_resumed
        #: Set once it is known whether notifications arrive.
        self.tried = asyncio.Event()
        #: Whether notifications arrive.
        self.receiving = False
        #: The last error; empty if there was none.
        self.last_error = ""

    async def serve(self) -> None:
        """Listen until cancelled, with back-off between attempts."""
        backoff = Backoff(base_s=0.5, cap_s=30.0)
        while True:
            try:
                await self._listen(backoff)
            except (Exception, asyncio.CancelledError) as error:
                was_receiving, self.receiving = self.receiving, False
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                self.last_error = str(error)
                self.tried.set()
                pause = backoff.next_s()
                if was_receiving or backoff.failures == 1:
                    logger.warning(
                        "listening_failed topic=%s polling=true next_try_s=%.1f error=%s",
                        self._topic.name.lower(),
                        pause,
                        error,
                        exc_info=not isinstance(error, ChancyError),  # only for unexpected errors
                    )
                await self._clock.sleep(pause)

    async def _listen(self, backoff: Backoff) -> None:
        subscription = await self._broker.subscribe(self._topic)
        try:
            self._dispatch(await subscription.probe(_PROBE_TIMEOUT_S))
            self.receiving = True
            self.tried.set()
            backoff.reset()
            logger.info("listening topic=%s", self._topic.name.lower())
            self._on_resumed()
            await self._receive(subscription)
        finally:
            await subscription.close()

    async def _receive(self, subscription: Subscription) -> None:
        handled = 0
        heard_at = self._clock.monotonic()

        def handle(notice: Notice) -> bool:
            # 0.1 ms earlier than a list of them, and without waking a task that often has nothing
            # to do: most notifications of new jobs are for other workers.
            nonlocal handled, heard_at
            heard_at = self._clock.monotonic()
            if handled == _HANDLED:
                return False
            handled += 1
            self._handle(notice)
            return True

        while True:
            handled = 0
            probe_s = _PROBE_EVERY_S * random.uniform(0.5, 1.0)
            silent_s = self._clock.monotonic() - heard_at
            notices = await subscription.receive(max(0.0, probe_s - silent_s), handle)
            if notices:
                heard_at = self._clock.monotonic()
            elif self._clock.monotonic() - heard_at >= probe_s:
                notices = await subscription.probe(_PROBE_TIMEOUT_S)
                heard_at = self._clock.monotonic()
            self._dispatch(notices)
            # Any client may flood the channel: a pause of 1 ms bounds the cost.
            if handled + len(notices) > _HANDLED:
                await self._clock.sleep(0.001)

    def _dispatch(self, notices: list[Notice]) -> None:
        for notice in set(notices):
            self._handle(notice)

    def _handle(self, notice: Notice) -> None:
        try:
            self._on_notice(notice)
        except Exception:
            logger.exception("notice_failed notice=%r", notice)

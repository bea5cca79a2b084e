"""Hearing notices, and knowing whether they are heard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from chancy.broker.contract import Broker
from chancy.broker.notices import Notice, Subscription
from chancy.clock import Backoff, Clock
from chancy.errors import ChancyError

logger = logging.getLogger("chancy.worker")

#: Seconds without any notice after which the listener proves that it still hears.
_PROBE_EVERY_S = 8.0
#: Seconds that a proof may take.
_PROBE_TIMEOUT_S = 4.0


class Listener:
    """Keeps a subscription, proves it by round trips, and replaces it when it is deaf.

    :param heed: is told each notice.
    :param resumed: is called whenever a subscription begins: what was said before is lost.
    """

    def __init__(
        self,
        broker: Broker,
        clock: Clock,
        *,
        heed: Callable[[Notice], None],
        resumed: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._heed = heed
        self._resumed = resumed
        #: Set once it is known whether notices arrive.
        self.tried = asyncio.Event()
        #: Whether notices arrive.
        self.hears = False
        #: Why they do not, the last time that they did not.
        self.complaint = ""

    async def serve(self) -> None:
        """Listen until cancelled, with back-off between tries."""
        backoff = Backoff(base_s=0.5, cap_s=30.0)
        while True:
            try:
                await self._listen(backoff)
            except Exception as error:
                heard, self.hears = self.hears, False
                self.complaint = str(error)
                self.tried.set()
                # A listen_dsn that is refused is no reason to do without the rest.
                if not isinstance(error, ChancyError):
                    raise
                pause = backoff.next_s()
                if heard or backoff.failures == 1:
                    logger.warning(
                        "listening_failed polling=true next_try_s=%.1f error=%s", pause, error
                    )
                await self._clock.sleep(pause)

    async def _listen(self, backoff: Backoff) -> None:
        subscription = await self._broker.subscribe()
        try:
            self._tell(await subscription.probe(_PROBE_TIMEOUT_S))
            self.hears = True
            self.tried.set()
            backoff.reset()
            logger.info("listening polling=relaxed")
            self._resumed()
            await self._receive(subscription)
        finally:
            await subscription.close()

    async def _receive(self, subscription: Subscription) -> None:
        told: list[Notice] = []

        def tell_first(notice: Notice) -> None:
            # An idle worker waits for it, and has 0.1 ms less to wait than for the whole list.
            told.append(notice)
            self._tell_one(notice)

        while True:
            notices = await subscription.receive(_PROBE_EVERY_S, tell_first)
            if told:
                notices.remove(told.pop())
            elif not notices:
                notices = await subscription.probe(_PROBE_TIMEOUT_S)
            self._tell(notices)
            # Anybody may flood the channel: what it costs is bounded by a pause of 1 ms.
            if len(notices) > 100:
                await self._clock.sleep(0.001)

    def _tell(self, notices: list[Notice]) -> None:
        for notice in set(notices):
            self._tell_one(notice)

    def _tell_one(self, notice: Notice) -> None:
        try:
            self._heed(notice)
        except Exception:
            logger.exception("notice_failed notice=%r", notice)

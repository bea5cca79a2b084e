"""The schedule of the relay of events: on notification in the leader, by polling elsewhere."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from chancy.broker.notices import Subscription, Topic
from chancy.clock import Backoff
from chancy.errors import BrokerError
from chancy.plugin.leader import elected
from chancy.plugin.runtime import Runtime

logger = logging.getLogger("chancy.redis")

#: Seconds between two polls of the leader, which also gets notifications, and of other workers.
_EVERY_S, _RARELY_S = 2.0, 15.0


class LeaderLoop:
    """Runs a relay in each worker.

    The leader runs on notification, the others poll rarely, so that events are relayed without a
    leader, too.

    :param turn: relays a batch; returns whether there may be more.
    """

    def __init__(self, runtime: Runtime, turn: Callable[[], Awaitable[bool]]) -> None:
        self._runtime = runtime
        self._turn = turn
        self._subscription: Subscription | None = None

    async def serve(self) -> None:
        """Run until cancelled."""
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        clock = self._runtime.clock
        try:
            while True:
                try:
                    if self._runtime.leader.leading:
                        await self._subscribe()
                    while await self._turn():
                        backoff.reset()
                except BrokerError as error:
                    pause_s = backoff.next_s()
                    logger.warning("redis_relay_postponed next_try_s=%.1f error=%s", pause_s, error)
                    await clock.sleep(pause_s)
                else:
                    backoff.reset()
                    await self._wait()
        finally:
            await self._unsubscribe()

    async def _subscribe(self) -> None:
        if self._subscription is None:
            try:
                self._subscription = await self._runtime.broker.subscribe(Topic.RELAY)
            except BrokerError as error:
                logger.warning("redis_relay_polling error=%s", error)

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    async def _wait(self) -> None:
        clock, leader = self._runtime.clock, self._runtime.leader
        if not leader.leading:
            await self._unsubscribe()
            await elected(leader, clock, _RARELY_S * random.uniform(0.8, 1.2))
            return
        pause_s = _EVERY_S * random.uniform(0.8, 1.2)
        if self._subscription is None:
            await clock.sleep(pause_s)
            return
        try:
            await self._subscription.receive(pause_s)
        except BrokerError as error:
            logger.warning("redis_relay_polling error=%s", error)
            await self._unsubscribe()
            await asyncio.sleep(random.uniform(0.0, 1.0))

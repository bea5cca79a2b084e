"""When to look into an outbox: the leader when it is told, the others now and then."""

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

#: Seconds between two looks of the leader, who also hears notices, and of the others.
_EVERY_S, _RARELY_S = 2.0, 15.0


class LeaderLoop:
    """Works beside each worker: the leader at once, the others now and then, so that it is done
    without any leader too.

    :param begin: reaches the server.
    :param turn: does what there is to do; whether there may be more at once.
    """

    def __init__(
        self,
        runtime: Runtime,
        begin: Callable[[], Awaitable[None]],
        turn: Callable[[], Awaitable[bool]],
    ) -> None:
        self._runtime = runtime
        self._begin = begin
        self._turn = turn
        self._subscription: Subscription | None = None

    async def serve(self) -> None:
        """Go on until cancelled."""
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        clock = self._runtime.clock
        try:
            while True:
                try:
                    if self._runtime.leader.leading:
                        await self._listen()
                    await self._begin()
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
            await self._deafen()

    async def _listen(self) -> None:
        if self._subscription is None:
            try:
                self._subscription = await self._runtime.broker.subscribe(Topic.RELAY)
            except BrokerError as error:
                logger.warning("redis_relay_polling error=%s", error)

    async def _deafen(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.close()

    async def _wait(self) -> None:
        clock, leader = self._runtime.clock, self._runtime.leader
        if not leader.leading:
            await self._deafen()
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
            await self._deafen()
            await asyncio.sleep(random.uniform(0.0, 1.0))

"""The schedule of the relay of events: on notification in the leader, by polling elsewhere."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from chancy.broker.listener import Listener
from chancy.broker.notices import Topic
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
        self._woken = asyncio.Event()
        #: The task of the listener; None while another worker leads.
        self._listening: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Run until cancelled."""
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        try:
            while True:
                self._woken.clear()
                try:
                    while await self._turn():
                        backoff.reset()
                except BrokerError as error:
                    pause_s = backoff.next_s()
                    logger.warning("redis_relay_postponed next_try_s=%.1f error=%s", pause_s, error)
                    await self._runtime.clock.sleep(pause_s)
                else:
                    backoff.reset()
                    await self._wait()
        finally:
            await self._stop_listening()

    async def _wait(self) -> None:
        clock, leader = self._runtime.clock, self._runtime.leader
        if not leader.leading:
            await self._stop_listening()
            await elected(leader, clock, _RARELY_S * random.uniform(0.8, 1.2))
            return
        if self._listening is None:
            listener = Listener(
                self._runtime.broker,
                clock,
                Topic.RELAY,
                on_notice=lambda _: self._woken.set(),
                on_resumed=self._woken.set,
            )
            self._listening = asyncio.create_task(listener.serve(), name="chancy redis relay")
        await clock.wait(self._woken, _EVERY_S * random.uniform(0.8, 1.2))

    async def _stop_listening(self) -> None:
        task, self._listening = self._listening, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

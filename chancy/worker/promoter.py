"""Promotion of scheduled jobs that are due."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock

#: Jobs of one statement: small enough that a million due at the same time do not block claims.
BATCH = 1_000
#: Seconds between promotions when no job is known to be due earlier.
_LONGEST_S = 1.0
#: Seconds between promotions for each of `Promotion.ahead`, and the most.
_RARELY_S, _MOST_RARELY_S = 3.0, 60.0


class Promoter:
    """Makes due jobs pending. Every worker runs one: their batches do not overlap.

    The first worker promotes as soon as a job is due, the next one every 3 s, and each further one
    more rarely: however many there are, few promote at a time, and one that dies is replaced within
    seconds.
    """

    def __init__(self, broker: Broker, clock: Clock, worker_id: Callable[[], UUID]) -> None:
        self._broker = broker
        self._clock = clock
        self._worker_id = worker_id

    async def serve(self) -> None:
        while True:
            promotion = await self._broker.promote(BATCH, worker_id=self._worker_id())
            if promotion.promoted >= BATCH:
                await asyncio.sleep(0)
                continue
            pause = min(_RARELY_S * promotion.ahead, _MOST_RARELY_S) or _LONGEST_S
            pause *= random.uniform(0.8, 1.0)
            if promotion.next_due_s is not None and not promotion.ahead:
                # Due rows that are locked are being promoted by another worker.
                pause = min(pause, max(promotion.next_due_s, 0.02))
            await self._clock.sleep(pause)

"""Promotion of scheduled jobs that are due."""

from __future__ import annotations

import asyncio
import random

from chancy.broker.contract import Broker
from chancy.clock import Clock

#: Jobs of one statement: small enough that a million due at the same time do not block claims.
BATCH = 1_000
#: Seconds between promotions when no job is known to be due earlier.
_LONGEST_S = 1.0


class Promoter:
    """Makes due jobs pending. Every worker runs one: their batches do not overlap."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock

    async def serve(self) -> None:
        while True:
            promotion = await self._broker.promote(BATCH)
            if promotion.promoted >= BATCH:
                await asyncio.sleep(0)
                continue
            pause = _LONGEST_S * random.uniform(0.8, 1.0)
            if promotion.next_due_s is not None:
                # Due rows that are locked are being promoted by another worker.
                pause = min(pause, max(promotion.next_due_s, 0.02))
            await self._clock.sleep(pause)

"""Promotion of scheduled jobs that are due."""

from __future__ import annotations

import asyncio
import math
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
#: Delays below this many seconds are known to the promoter of the worker that settled the job.
SOON_S = 1.0
#: Seconds between the promotions for such jobs: one that asks to run at once is this late at most.
_SOON_EVERY_S = 0.1


class Promoter:
    """Makes due jobs pending. Every worker runs one: their batches do not overlap.

    The first worker promotes as soon as a job is due, the next one every 3 s, and each further one
    more rarely: however many there are, few promote at a time, and one that dies is replaced within
    seconds. Each also promotes when jobs are due that it has settled with a short delay, so that a
    retry that should begin at once does not wait for the next promotion.
    """

    def __init__(self, broker: Broker, clock: Clock, worker_id: Callable[[], UUID]) -> None:
        self._broker = broker
        self._clock = clock
        self._worker_id = worker_id
        #: When to promote for jobs that were settled here: one of ten times a second. The workers
        #: of a machine share a clock, so each has its own ten.
        self._soon = set[float]()
        self._phase = random.random()
        self._settled = asyncio.Event()

    def expect(self, delay_s: float) -> None:
        """Promote in this many seconds, less than `SOON_S`, for a job that was settled here."""
        due = self._clock.monotonic() + max(delay_s, 0.0)
        turn = math.ceil(due / _SOON_EVERY_S - self._phase) + self._phase
        self._soon.add(turn * _SOON_EVERY_S)
        self._settled.set()

    async def serve(self) -> None:
        while True:
            now = self._clock.monotonic()
            self._soon = {due for due in self._soon if due > now}
            promotion = await self._broker.promote(BATCH, worker_id=self._worker_id())
            if promotion.promoted >= BATCH:
                await asyncio.sleep(0)
                continue
            pause = min(_RARELY_S * promotion.ahead, _MOST_RARELY_S) or _LONGEST_S
            pause *= random.uniform(0.8, 1.0)
            if promotion.next_due_s is not None and not promotion.ahead:
                # Due rows that are locked are being promoted by another worker.
                pause = min(pause, max(promotion.next_due_s, 0.02))
            await self._rest(pause)

    async def _rest(self, pause: float) -> None:
        until = self._clock.monotonic() + pause
        while True:
            self._settled.clear()
            left = min({until, *self._soon}) - self._clock.monotonic()
            if not await self._clock.wait(self._settled, left):
                return

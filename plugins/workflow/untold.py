"""Ends of steps that another broker has stored, and the tables of workflows do not know yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from uuid import UUID

from chancy.clock import Backoff, Clock
from chancy.errors import BrokerError
from chancy.plugins.workflow.ends import End, order
from chancy.plugins.workflow.flows import Flows

logger = logging.getLogger("chancy.workflows")

#: Ends of one statement, and those that wait at most: the sweep finds the others.
_BATCH, _MOST = 500, 20_000


class Untold:
    """What one process has yet to tell. As it is told once it is stored, it is told in batches
    that grow with the load. Who dies before it leaves it to the sweep."""

    def __init__(self) -> None:
        self._ends: dict[UUID, End] = {}
        self._wakes: set[asyncio.Event] = set()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, ends: Sequence[End]) -> None:
        """Tell these soon. The oldest are given up when there are too many."""
        for end in ends:
            self._ends[end.job] = end
        while len(self._ends) > _MOST:
            del self._ends[next(iter(self._ends))]
        if ends:
            for wake in self._wakes:
                wake.set()

    async def tell(self, flows: Flows, clock: Clock) -> None:
        """Tell what there is, until cancelled. What cannot be told in a way that nobody has thought
        of is left to the sweep."""
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            while True:
                try:
                    while self._ends:
                        await self._some(flows)
                        backoff.reset()
                except BrokerError as error:
                    pause_s = backoff.next_s()
                    logger.warning(
                        "workflow_steps_postponed steps=%d next_try_s=%.1f error=%s",
                        len(self._ends),
                        pause_s,
                        error,
                    )
                    await clock.sleep(pause_s)
                except Exception:
                    logger.warning("workflow_steps_left most=%d", _BATCH, exc_info=True)
                    await clock.sleep(backoff.next_s())
                else:
                    wake.clear()
                    await wake.wait()
        finally:
            self._wakes.discard(wake)

    async def _some(self, flows: Flows) -> None:
        some = [self._ends.pop(id) for id in list(self._ends)[:_BATCH]]
        try:
            await flows.advance_each(sorted(some, key=order), alone=False)
        except (BrokerError, asyncio.CancelledError):
            self.add(some)
            raise

"""Claims the jobs of one queue."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.contract import never
from chancy.clock import Backoff, Clock
from chancy.errors import BrokerError
from chancy.queue.queue import Queue
from chancy.worker.runner import Runner
from chancy.worker.settler import Settler

logger = logging.getLogger("chancy.worker")

#: Pauses between claims for a second after a wake-up, since the notification of one push may also
#: stand for another that commits a little later.
_LADDER_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.37)
#: While notifications arrive, polling only finds jobs without a notification.
_RELAXED_FACTOR = 10.0
_RELAXED_MOST_S = 5.0


class Claiming(Protocol):
    """`chancy.broker.contract.Broker.claim`."""

    async def __call__(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool = False,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]: ...


class Puller:
    """Claims as many jobs as a runner has room for: when woken, when there is room, and by polling.

    :param claim: see `chancy.broker.contract.Broker.claim`.
    :param knows: whether jobs of a function that were set aside may be claimed here.
    :param give: called with the claims.
    :param listening: whether notifications arrive now; polling is then less frequent.
    """

    def __init__(
        self,
        queue: Queue,
        runner: Runner,
        settler: Settler,
        clock: Clock,
        *,
        claim: Claiming,
        knows: Callable[[str], bool],
        give: Callable[[Sequence[Claim]], None],
        worker_id: Callable[[], UUID],
        listening: Callable[[], bool],
    ) -> None:
        self.queue = queue
        self._runner = runner
        self._give = give
        self._claim = claim
        self._knows = knows
        self._settler = settler
        self._clock = clock
        self._worker_id = worker_id
        self._listening = listening
        self._woken = asyncio.Event()
        self._thorough = True
        self._rung = len(_LADDER_S)
        self._stopping = False
        self._paused = False
        #: Set when the last thorough claim found no jobs.
        self.drained = asyncio.Event()

    def wake(self, *, thorough: bool = False) -> None:
        """Claim now.

        :param thorough: start from the front of the queue, where jobs may have been released.
        """
        self._thorough = self._thorough or thorough
        self._rung = 0
        self._woken.set()

    def pause(self, paused: bool) -> None:
        """Claim nothing while paused. For brokers that do not store the paused state."""
        self._paused = paused
        self.wake(thorough=True)

    def stop(self) -> None:
        """Stop claiming. The runner still gets the jobs of a claim in progress."""
        self._stopping = True
        self._woken.set()
        self._runner.roomy.set()
        self._settler.open.set()

    async def serve(self) -> None:
        """Claim until stopped."""
        backoff = Backoff(base_s=0.1, cap_s=5.0)
        while not self._stopping:
            if self._paused:
                self.drained.set()
                self._woken.clear()
                await self._woken.wait()
                continue
            limit = await self._room()
            if limit == 0:
                continue
            self._woken.clear()
            thorough, self._thorough = self._thorough, False
            try:
                claims = await self._claim(
                    self.queue.name,
                    worker_id=self._worker_id(),
                    limit=limit,
                    thorough=thorough,
                    knows=self._knows,
                )
            except BrokerError as error:
                self._thorough = True
                pause = backoff.next_s()
                logger.warning(
                    "claiming_postponed queue=%s next_try_s=%.1f error=%s",
                    self.queue.name,
                    pause,
                    error,
                )
                await self._clock.wait(self._woken, pause)
                self._woken.clear()
                continue
            backoff.reset()
            self._give(claims)
            if claims:
                self.drained.clear()
                self._rung = 0
            elif thorough and not self._thorough:
                # No jobs have been released in the meantime.
                self.drained.set()
            if len(claims) < limit:
                if claims:
                    # Let the jobs start before the pause is computed.
                    await asyncio.sleep(0)
                await self._rest()

    async def _room(self) -> int:
        """Wait until more may be claimed. Returns how many; 0 to try again."""
        if not self._settler.open.is_set():
            await self._clock.wait(self._settler.open, 1.0)
            return 0
        room = self._runner.room
        if room > 0:
            return room
        self._runner.roomy.clear()
        if not await self._clock.wait(self._runner.roomy, 0.5):
            self._runner.release_stuck()
        return 0

    async def _rest(self) -> None:
        if self._rung < len(_LADDER_S):
            pause = _LADDER_S[self._rung]
            self._rung += 1
        else:
            pause = self.queue.poll_interval_s
            if self._listening():
                pause = max(pause, min(pause * _RELAXED_FACTOR, _RELAXED_MOST_S))
        await self._clock.wait(self._woken, pause * random.uniform(0.8, 1.2))

"""Claims the jobs of one queue."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.broker.contract import Claims
from chancy.clock import Backoff, Clock
from chancy.errors import BrokerError
from chancy.queue.queue import Queue
from chancy.worker.runner import Runner
from chancy.worker.settler import Settler
from chancy.worker.surveyor import SURVEY_EVERY_S, relaxed_s

logger = logging.getLogger("chancy.worker")

#: Pauses between claims after a wake-up and after a claim of jobs, since one notification may
#: stand for two pushes, of which the second commits a little later. The first ladder applies if
#: surveys find jobs that commit even later, the second if only polling does.
_LADDER_S, _POLLED_LADDER_S = (0.02, 0.3), (0.02, 0.1, 0.8)
#: Characters of arguments and meta from which on a claim may have ended because of its size.
_LARGE = 256 * 1024


class Puller:
    """Claims as many jobs as a runner has room for: when woken, when there is room, and, unless
    surveys find the jobs, by polling.

    :param knows: whether jobs of a function that were set aside may be claimed here.
    :param give: called with the claims.
    :param in_contact: see `chancy.worker.registration.Registration`.
    :param listening: whether notifications arrive now; polling is then less frequent. None: no
        polling, since surveys wake the puller.
    :param ruled: whether claims are by rules, which other workers share.
    :param call: called when there may be more jobs than this worker can take.
    """

    def __init__(
        self,
        queue: Queue,
        runner: Runner,
        settler: Settler,
        clock: Clock,
        *,
        claims: Claims,
        knows: Callable[[str], bool],
        give: Callable[[Sequence[Claim]], None],
        worker_id: Callable[[], UUID],
        in_contact: asyncio.Event,
        listening: Callable[[], bool] | None,
        ruled: bool = False,
        call: Callable[[], None] = lambda: None,
    ) -> None:
        self.queue = queue
        self._runner = runner
        self._give = give
        self._claims = claims
        self._knows = knows
        self._settler = settler
        self._clock = clock
        self._worker_id = worker_id
        self._in_contact = in_contact
        self._listening = listening
        self._ruled = ruled
        self._call = call
        self._woken = asyncio.Event()
        self._thorough = True
        self._ladder_s = _LADDER_S if listening is None else _POLLED_LADDER_S
        self._rung = len(self._ladder_s)
        self._stopping = False
        self._paused = False
        self._spare: asyncio.TimerHandle | None = None
        #: How many jobs were announced since the last claim.
        self._announced = 0
        #: Whether it waits for room, or for the settler.
        self.occupied = False
        #: Since when it claims nothing until it is woken.
        self._rests_since: float | None = None
        #: Set when the last thorough claim found no jobs.
        self.drained = asyncio.Event()

    def wake(self, *, thorough: bool = False) -> None:
        """Claim now.

        :param thorough: start from the front of the queue, where jobs may have been released.
        """
        self._thorough = self._thorough or thorough
        self._woken.set()

    def notify(self, jobs: int, delay_s: float) -> None:
        """Claim for a notification of new jobs: now, or as a spare worker after some seconds unless
        a claim begins before. If there is no room now, other workers are called."""
        if delay_s:
            if self._spare is None:
                self._spare = asyncio.get_running_loop().call_later(delay_s, self._woken.set)
            return
        self._announced = max(self._announced, jobs)
        self._rung = 0
        self._woken.set()
        if self.occupied or self._stopping:
            self._call()

    @property
    def resting(self) -> bool:
        """Whether it claims nothing until it is woken."""
        return self._rests_since is not None

    def claim_found(self, unheard: bool) -> None:
        """Claim for a survey that has found jobs, unless a claim follows anyway, or the poll
        interval is longer than surveys are apart and has not passed.

        :param unheard: notifications of the jobs may have been lost; the poll interval is for jobs
            without a notification, and does not matter then.
        """
        if self._rests_since is not None:
            interval_s = self.queue.poll_interval_s
            rested_s = self._clock.monotonic() - self._rests_since
            if unheard or interval_s <= SURVEY_EVERY_S or rested_s >= interval_s:
                self.wake(thorough=True)

    def pause(self, paused: bool) -> None:
        """Claim nothing while paused. For brokers that do not store the paused state."""
        self._paused = paused
        self.wake(thorough=True)

    def stop(self) -> None:
        """Stop claiming. The runner still gets the jobs of a claim in progress."""
        self._stopping = True
        self._cancel_spare()
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
            self._cancel_spare()
            self._woken.clear()
            announced, self._announced = self._announced, 0
            thorough, self._thorough = self._thorough, False
            try:
                claims = await self._claims.claim(
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
            if not self._in_contact.is_set():
                self._runner.release_waiting("the worker was cut off during the claim")
            if self._ruled:
                self._runner.adapt_prefetch(limit, len(claims))
            if claims:
                self.drained.clear()
                self._rung = 0
            elif thorough and not self._thorough:
                # No jobs have been released in the meantime.
                self.drained.set()
            if len(claims) >= limit or _is_large(claims):
                if len(claims) > announced:
                    self._call()
            else:
                if claims:
                    # Let the jobs start before the pause is computed.
                    await asyncio.sleep(0)
                await self._rest()

    def _cancel_spare(self) -> None:
        if self._spare is not None:
            self._spare.cancel()
            self._spare = None

    async def _room(self) -> int:
        """Wait until more may be claimed. Returns how many; 0 to try again."""
        self.occupied = True
        limit = await self._wait_for_room()
        self.occupied = limit == 0
        return limit

    async def _wait_for_room(self) -> int:
        if not self._settler.open.is_set():
            await self._clock.wait(self._settler.open, 1.0)
            return 0
        if not self._in_contact.is_set():
            if not self._stopping:
                await self._clock.wait(self._in_contact, 0.2)
            return 0
        room = self._runner.room
        if room > 0:
            return room
        self._runner.roomy.clear()
        if not await self._clock.wait(self._runner.roomy, 0.5):
            self._runner.release_stuck()
        return 0

    async def _rest(self) -> None:
        if self._rung < len(self._ladder_s):
            pause = self._ladder_s[self._rung]
            self._rung += 1
        elif self._listening is None:
            self._rests_since = self._clock.monotonic()
            await self._woken.wait()
            self._rests_since = None
            return
        else:
            pause = relaxed_s(self.queue.poll_interval_s, listening=self._listening())
        await self._clock.wait(self._woken, pause * random.uniform(0.8, 1.2))


def _is_large(claims: Sequence[Claim]) -> bool:
    """Whether there may be more jobs, although a claim got fewer than it asked for."""
    return sum(claim.size for claim in claims) >= _LARGE

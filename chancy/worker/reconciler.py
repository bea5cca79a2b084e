"""Release of jobs that a store assigns to this worker but that do not run here.

After a failover, or a crash that lost recent writes, a server may have a claim but not its
completion. Or the reply to a claim is lost, and its queue is deleted before the next claim. No
worker runs such a job, and it is not rescued, since its worker is alive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.states import State
from chancy.worker.registration import Registration
from chancy.worker.settler import Settler

logger = logging.getLogger("chancy.worker")

#: Seconds between two checks. A claim that two checks in a row find is lost: a late reply has
#: arrived by then, since a claim that takes longer counts as failed.
EVERY_S = 10.0
#: A check may take this share of the time: it passes the index entries of all jobs that this worker
#: has claimed since the oldest open snapshot.
_SHARE = 1 / 100


class ClaimReconciler:
    """Compares the claims that a broker has for this worker with the jobs that run here, and
    releases the difference without counting an attempt."""

    def __init__(
        self, broker: Broker, registration: Registration, settler: Settler, clock: Clock
    ) -> None:
        self._broker = broker
        self._registration = registration
        self._settler = settler
        self._clock = clock
        #: Leases of the jobs that the last check found, by job id.
        self._previous: Mapping[UUID, UUID] = {}

    async def serve(self, held: Callable[[], set[UUID]]) -> None:
        """Check at an interval until cancelled.

        :param held: returns the ids of jobs that run or wait to run here, of every broker.
        :raises BrokerError: the store is unavailable.
        """
        pause_s = EVERY_S
        while True:
            await self._clock.sleep(pause_s)
            started = self._clock.monotonic()
            await self._check(held())
            pause_s = max(EVERY_S, (self._clock.monotonic() - started) / _SHARE)

    async def _check(self, held: set[UUID]) -> None:
        besides = held | self._settler.ids
        found = await self._broker.running(self._registration.worker_id, besides=besides)
        lost = {id: lease for id, lease in found.items() if self._previous.get(id) == lease}
        self._previous = found
        if not lost:
            return
        logger.warning(
            "lost_claims_released jobs=%d first=%s: the store has claims of this worker for them, "
            "but they do not run here: their completion or the reply to their claim was lost. They "
            "run again",
            len(lost),
            next(iter(lost)),
        )
        for id, lease in lost.items():
            self._settler.add(Settlement(id, lease, State.PENDING, refund=True))

"""Jobs that a store says run on this worker, and that do not.

A server that took over, or that crashed before it had written everything, may know of a claim and
not of its end. The answer to a claim may be lost, and its queue be deleted before anybody asks
again. Nobody runs such a job, and nobody rescues it, since its worker lives.
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

#: Seconds between two looks. What two of them find is lost: an answer that was late has come by
#: then, as a claim that takes as long counts as one without an answer.
EVERY_S = 10.0


class ClaimReconciler:
    """Compares what one broker says that the worker runs with what it does, and gives back the
    difference, at no cost to the jobs."""

    def __init__(
        self, broker: Broker, presence: Registration, settler: Settler, clock: Clock
    ) -> None:
        self._broker = broker
        self._presence = presence
        self._settler = settler
        self._clock = clock
        #: What the last look has found, with its leases.
        self._before: Mapping[UUID, UUID] = {}

    async def serve(self, held: Callable[[], set[UUID]]) -> None:
        """Look again and again until cancelled.

        :param held: the jobs that run or wait to run here, of every broker.
        :raises BrokerError: the store is away.
        """
        while True:
            await self._clock.sleep(EVERY_S)
            await self._look(held())

    async def _look(self, held: set[UUID]) -> None:
        besides = held | self._settler.ids
        found = await self._broker.running(self._presence.worker_id, besides=besides)
        lost = {id: lease for id, lease in found.items() if self._before.get(id) == lease}
        self._before = found
        if not lost:
            return
        logger.warning(
            "lost_claims_released jobs=%d first=%s: the store says that they run here, and they do "
            "not, as their ends or the answers to their claims were lost; they run again",
            len(lost),
            next(iter(lost)),
        )
        for id, lease in lost.items():
            self._settler.add(Settlement(id, lease, State.PENDING, refund=True))

"""Jobs of a queue that are with the control broker although the queue lives elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Settlement
from chancy.broker.optional import Adopting
from chancy.worker.broker_session import BrokerSession
from chancy.worker.runner import Runner

#: After a claim without an answer claims go on, also where nothing seems to be left: they find what
#: it took. A broker remembers it for half as long.
_UNSURE_FOR_S = 60.0


class QueueAdoption:
    """Has the broker of the queue take them over, runs what it leaves beside the others, and knows
    whose each claim is.

    They were pushed by SQL, by a plugin that writes rows, by somebody who does not know where the
    queue lives, or before it moved there.

    :param control: the broker that has them.
    :param plane: the one that has the queue.
    :param adopted: called when it has taken some over.
    :param again: called when there may be more to take over: each claim takes over one batch, so
        that a worker which is to stop does.
    """

    def __init__(
        self,
        control: BrokerSession,
        plane: BrokerSession,
        *,
        adopted: Callable[[], None],
        again: Callable[[], None],
    ) -> None:
        self._control = control
        self._plane = plane
        self._adopted = adopted
        self._again = again
        broker = plane.broker
        self._adopt = broker.adoption(control.broker) if isinstance(broker, Adopting) else None
        self._sure_at = 0.0
        #: Claims in hand by their lease.
        self._leases: dict[UUID, int] = {}

    async def claim(
        self, queue: str, *, worker_id: UUID, limit: int, thorough: bool = False
    ) -> Sequence[Claim]:
        """`Broker.claim` of what is left where it is."""
        if self._adopt is None:
            return await self._control.broker.claim(
                queue, worker_id=worker_id, limit=limit, thorough=thorough
            )
        done = await self._adopt(queue)
        if done.jobs:
            self._adopted()
        if done.more:
            self._again()
        if not done.rest and time.monotonic() > self._sure_at:
            return ()
        try:
            return await self._adopt.claim(queue, worker_id=worker_id, limit=limit)
        except BaseException:
            self._sure_at = time.monotonic() + _UNSURE_FOR_S
            raise

    def to(self, runner: Runner) -> Callable[[Sequence[Claim]], None]:
        """What takes claims of the control broker."""

        def give(claims: Sequence[Claim]) -> None:
            for claim in claims:
                self._leases[claim.lease] = self._leases.get(claim.lease, 0) + 1
            runner.give(claims)

        return give

    def plane_of(self, claim: Claim) -> BrokerSession:
        return self._control if claim.lease in self._leases else self._plane

    def settle(self, settlement: Settlement) -> None:
        """Hand a settlement to the settler that it belongs to."""
        lease = settlement.lease
        if lease not in self._leases:
            self._plane.settler.add(settlement)
            return
        self._leases[lease] -= 1
        if not self._leases[lease]:
            del self._leases[lease]
        self._control.settler.add(settlement)

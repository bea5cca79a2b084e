"""Jobs that the control broker stores for a queue that lives on another broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Settlement
from chancy.broker.contract import never
from chancy.broker.optional import Adopting, for_upkeep
from chancy.worker.broker_session import BrokerSession
from chancy.worker.runner import Runner

#: Seconds for which claims continue after a failed one, even if the queue seems to be empty: they
#: return the jobs of the lost reply. A broker remembers those for half as long.
_UNSURE_FOR_S = 60.0


class QueueAdoption:
    """Moves jobs from the control broker to the broker of their queue, claims those that stay
    behind, and records which broker each claim came from.

    Such jobs were pushed by SQL, by a plugin that writes rows, by an application that does not know
    where the queue lives, or before the queue moved.

    :param control: the session of the control broker, which stores the jobs.
    :param session: the session of the queue's broker.
    :param on_adopted: called after jobs have been moved.
    :param on_more: called when more jobs may be waiting. Each claim moves one batch, so a stopping
        worker is not held up.
    """

    def __init__(
        self,
        control: BrokerSession,
        session: BrokerSession,
        *,
        on_adopted: Callable[[], None],
        on_more: Callable[[], None],
    ) -> None:
        self._control = control
        self._session = session
        self._on_adopted = on_adopted
        self._on_more = on_more
        broker = session.broker
        self._adopt = (
            broker.adoption(for_upkeep(control.broker)) if isinstance(broker, Adopting) else None
        )
        #: Whether jobs of the control broker are moved to the other one. Those that are being moved
        #: are found by polling only.
        self.adopts = self._adopt is not None
        self._unsure_until = 0.0
        #: Number of unsettled claims of the control broker, by lease.
        self._leases: dict[UUID, int] = {}

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool = False,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        """`Broker.claim` of the jobs that stay with the control broker."""
        if self._adopt is None:
            return await self._control.broker.claim(
                queue, worker_id=worker_id, limit=limit, thorough=thorough, knows=knows
            )
        adopted = await self._adopt(queue)
        if adopted.jobs:
            self._on_adopted()
        if adopted.more:
            self._on_more()
        if not adopted.rest and time.monotonic() > self._unsure_until:
            return ()
        try:
            return await self._adopt.claim(queue, worker_id=worker_id, limit=limit, knows=knows)
        except BaseException:
            self._unsure_until = time.monotonic() + _UNSURE_FOR_S
            raise

    def receiver(self, runner: Runner) -> Callable[[Sequence[Claim]], None]:
        """The callback that hands claims of the control broker to a runner."""

        def give(claims: Sequence[Claim]) -> None:
            for claim in claims:
                self._leases[claim.lease] = self._leases.get(claim.lease, 0) + 1
            runner.give(claims)

        return give

    def session_of(self, claim: Claim) -> BrokerSession:
        """The session of the broker that a claim came from."""
        return self._control if claim.lease in self._leases else self._session

    def settle(self, settlement: Settlement, on_stored: Callable[[], None] | None = None) -> None:
        """Pass a settlement to the settler of the broker that its claim came from."""
        lease = settlement.lease
        if lease not in self._leases:
            self._session.settler.add(settlement, on_stored)
            return
        self._leases[lease] -= 1
        if not self._leases[lease]:
            del self._leases[lease]
        self._control.settler.add(settlement, on_stored)

"""Jobs of a queue that are with the control broker although the queue lives elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

from chancy.attempt import Claim, Settlement
from chancy.worker.plane import Plane
from chancy.worker.runner import Runner


class Strays:
    """Runs them beside the others, and knows whose each claim is.

    They were pushed by SQL, by a plugin that writes rows, by somebody who does not know where the
    queue lives, or before it moved there.

    :param control: the broker that has them.
    :param plane: the one that has the queue.
    """

    def __init__(self, control: Plane, plane: Plane) -> None:
        self._control = control
        self._plane = plane
        #: Claims in hand by their lease.
        self._leases: dict[UUID, int] = {}

    def to(self, runner: Runner) -> Callable[[Sequence[Claim]], None]:
        """What takes claims of the control broker."""

        def give(claims: Sequence[Claim]) -> None:
            for claim in claims:
                self._leases[claim.lease] = self._leases.get(claim.lease, 0) + 1
            runner.give(claims)

        return give

    def plane_of(self, claim: Claim) -> Plane:
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

"""All the brokers that a worker works with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.plugin.hooks import Hooks
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.routing.router import RoutedBroker
from chancy.worker.broker_session import BrokerSession, BrokerSessionHost, Running
from chancy.worker.services import ServiceLoops
from chancy.worker.shutdown import tear_down
from chancy.worker.supervisor.link import SupervisorLink

#: Seconds for which the end of a worker waits for the stores to take the last settlements.
_FLUSH_S = 15.0


class BrokerSessions:
    """The control broker, and those that plugins supply, each with a plane of its own.

    :param broker: of the application.
    """

    def __init__(
        self,
        broker: Broker,
        member: BrokerSessionHost,
        *,
        hooks: Hooks,
        services: ServiceLoops,
        tags: Iterable[str],
        heartbeat_s: float,
        line: SupervisorLink | None,
    ) -> None:
        self._broker = broker
        self._routed = broker if isinstance(broker, RoutedBroker) else None
        tags = tuple(tags)
        self._planes = {
            name: BrokerSession(
                name,
                one,
                line,
                member=member,
                hooks=hooks,
                services=services,
                tags=tags,
                heartbeat_s=heartbeat_s,
            )
            for name, one in (
                self._routed.brokers.all.items() if self._routed else [(DEFAULT_BROKER, broker)]
            )
        }
        self.control = self._planes[DEFAULT_BROKER]

    def of(self, queue: Queue) -> BrokerSession:
        """Where a queue is served from. Raises `ConfigurationError` if that is not here."""
        self._broker.check_queue(queue)
        return self._planes.get(queue.broker, self.control)

    def start(self, worker_id: UUID, running: Running) -> None:
        """Begin with the control broker, which knows the worker, and to join the others."""
        self.control.start()
        self.control.compare(running)
        if self._routed is not None:
            for plane in self._planes.values():
                plane.join(worker_id, self._routed.brokers, running)

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        """Settle each with the broker that has given its claim, as far as is known."""
        if self._routed is None:
            return await self.control.settle(settlements)
        stale: set[UUID] = set()
        for name, part in self._routed.by_broker(settlements).items():
            stale |= await self._planes[name].settle(part)
        return frozenset(stale)

    @property
    def settled(self) -> int:
        """Settlements that they have taken from this worker."""
        return sum(plane.settler.settled for plane in self._planes.values())

    @property
    def empty(self) -> bool:
        """Whether nothing waits to be settled."""
        return all(plane.settler.empty.is_set() for plane in self._planes.values())

    async def flush(self) -> None:
        """Wait until nothing waits to be settled, at most 15 seconds."""
        await asyncio.gather(*(plane.settler.flush(_FLUSH_S) for plane in self._planes.values()))

    async def unregister(self) -> None:
        """Take the worker away from all of them, and beat no more."""
        await tear_down(*(plane.presence.unregister for plane in self._planes.values()))

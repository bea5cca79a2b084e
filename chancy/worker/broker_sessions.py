"""A worker's sessions with all of its brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from uuid import UUID

from chancy.attempt.settlement import Settlement
from chancy.broker.contract import Broker
from chancy.errors import BrokerError, RowsLocked
from chancy.plugin.hooks import Hooks
from chancy.queue.queue import DEFAULT_BROKER, Queue
from chancy.routing.router import RoutedBroker
from chancy.worker.broker_session import BrokerSession, BrokerSessionHost, Serving
from chancy.worker.services import ServiceLoops
from chancy.worker.shutdown import tear_down
from chancy.worker.supervisor.link import SupervisorLink

#: Seconds that a stopping worker waits for the stores to accept the last settlements.
_FLUSH_S = 15.0


class BrokerSessions:
    """The sessions with the control broker and with the brokers that plugins supply.

    :param broker: the broker of the application.
    """

    def __init__(
        self,
        broker: Broker,
        host: BrokerSessionHost,
        *,
        hooks: Hooks,
        services: ServiceLoops,
        tags: Iterable[str],
        heartbeat_s: float,
        link: SupervisorLink | None,
    ) -> None:
        self._broker = broker
        self._routed = broker if isinstance(broker, RoutedBroker) else None
        tags = tuple(tags)
        self._sessions = {
            name: BrokerSession(
                name,
                member,
                link,
                host=host,
                hooks=hooks,
                services=services,
                tags=tags,
                heartbeat_s=heartbeat_s,
            )
            for name, member in (
                self._routed.brokers.all.items() if self._routed else [(DEFAULT_BROKER, broker)]
            )
        }
        self.control = self._sessions[DEFAULT_BROKER]

    def of(self, queue: Queue) -> BrokerSession:
        """The session that serves a queue.

        :raises ConfigurationError: this application does not have the queue's broker.
        """
        self._broker.check_queue(queue)
        return self._sessions.get(queue.broker, self.control)

    def start(self, worker_id: UUID, serving: Serving) -> None:
        """Start the session of the control broker, then those of the others."""
        self.control.start()
        self.control.reconcile(serving)
        if self._routed is not None:
            for session in self._sessions.values():
                session.join(worker_id, self._routed.brokers, serving)

    async def settle(self, settlements: Sequence[Settlement]) -> frozenset[UUID]:
        """Settle each job with the broker that its claim came from, as far as that is known.

        :returns: the jobs whose lease is lost, whose rows are locked, and those of a broker that
            failed beside another one that did not.
        :raises Exception: the error of the first broker, if all of them failed.
        """
        if self._routed is None:
            try:
                return await self.control.settle(settlements)
            except RowsLocked as error:
                return error.stale | error.ids
        stale: set[UUID] = set()
        failures: list[Exception] = []
        batches = self._routed.by_broker(settlements)
        for name, batch in batches.items():
            try:
                stale |= await self._sessions[name].settle(batch)
            except RowsLocked as error:
                stale |= error.stale | error.ids
            except Exception as error:
                failures.append(error)
                self._routed.brokers.outages.failed(name, error)
                stale.update(settlement.id for settlement in batch)
        if failures and len(failures) == len(batches):
            raise failures[0]
        return frozenset(stale)

    def inform(self, broker: Broker) -> None:
        """Let the broker of the worker's plugins read for how long heartbeats have reached a broker
        without a gap."""
        if isinstance(broker, RoutedBroker):
            broker.contact_s = lambda name: self._sessions[name].registration.contact_s

    def survey_soon(self) -> None:
        """Survey every broker soon: other workers see there for which queues this one has room."""
        for session in self._sessions.values():
            if session.surveyor is not None:
                session.surveyor.soon()

    @property
    def settled(self) -> int:
        """Number of settlements that the brokers have accepted from this worker."""
        return sum(session.settler.settled for session in self._sessions.values())

    @property
    def empty(self) -> bool:
        """Whether no settlement waits to be written."""
        return all(session.settler.empty.is_set() for session in self._sessions.values())

    async def flush(self) -> None:
        """Wait until all settlements are written, at most 15 seconds. Then call other workers to
        the queues in which further jobs may start."""
        await asyncio.gather(*(session.flush(_FLUSH_S) for session in self._sessions.values()))
        for session in self._sessions.values():
            if session.surveyor is not None:
                with contextlib.suppress(BrokerError):  # they find it by their surveys
                    await session.surveyor.call_others()

    async def unregister(self) -> None:
        """Remove the worker from all brokers, and stop its heartbeats."""
        await tear_down(*(session.registration.unregister for session in self._sessions.values()))

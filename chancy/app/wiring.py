"""Builds the broker and the waiter of an application from Postgres and the brokers of plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from chancy.app.sync import BlockingStore, BlockingWait
from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.clock import Clock
from chancy.job.definition import QueuedJob
from chancy.plugin.hooks import Hooks
from chancy.plugin.runtime import BrokerContext
from chancy.queue.queue import Queue
from chancy.results.background import Background, JobWaiter
from chancy.results.waiter import CompletionWaiter
from chancy.routing.placement import QueuePlacement
from chancy.routing.router import RoutedBroker, RoutedSqlBroker
from chancy.routing.sync_router import RoutedStore
from chancy.routing.waiter import RoutedWaiter

if TYPE_CHECKING:
    from chancy.postgres.sync import SyncPostgresBroker


class OutcomeWaiter(Protocol):
    """Waits until jobs finish: `CompletionWaiter`, `RoutedWaiter`, or a substitute."""

    async def wait(self, id: UUID, timeout_s: float | None) -> QueuedJob: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute:
    """The parts that replace the database of an application; see `Chancy.replaced`."""

    broker: Broker
    clock: Clock
    finishes: OutcomeWaiter
    store: BlockingStore
    waiting: BlockingWait


class Wiring:
    """Makes the brokers and waiters of an application, for its event loop and for its threads.

    :param hooks: the hooks with the factories of the plugins' brokers. Without any factory,
        nothing is routed.
    :param queues: the queues of the application.
    """

    def __init__(self, hooks: Hooks, context: BrokerContext, queues: Iterable[Queue]) -> None:
        self._factories = hooks.brokers(context)
        self._check = hooks.check_queue
        self._clock = context.clock
        self._queues = tuple(queues)

    def make(self, control: Broker) -> tuple[Broker, OutcomeWaiter]:
        """The broker of an event loop, and the waiter for its jobs."""
        if not self._factories:
            return control, CompletionWaiter(control, self._clock)
        others = {name: make() for name, make in self._factories.items()}
        kind = RoutedSqlBroker if isinstance(control, SqlStore) else RoutedBroker
        broker = kind(control, others, self._clock, self._queues, self._check)
        return broker, RoutedWaiter(broker.brokers, self._clock)

    def make_blocking(
        self, store: SyncPostgresBroker, make_control: Callable[[], Broker]
    ) -> tuple[BlockingStore, BlockingWait]:
        """The store and the waiter for threads without an event loop."""

        def make() -> tuple[Broker, JobWaiter]:
            return self.make(make_control())

        background = Background(make)
        if not self._factories:
            return store, background
        others = {name: make() for name, make in self._factories.items()}
        placement = QueuePlacement(self._queues, others)
        return RoutedStore(store, others, background, placement, self._clock), background

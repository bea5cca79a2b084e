"""The brokers of an application, put together from Postgres and what plugins supply."""

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
from chancy.results.background import Background
from chancy.results.background import JobWaiter as BackgroundFinishes
from chancy.results.waiter import CompletionWaiter
from chancy.routing.placement import QueuePlacement
from chancy.routing.router import RoutedBroker, RoutedSqlBroker
from chancy.routing.sync_router import RoutedStore
from chancy.routing.waiter import RoutedWaiter

if TYPE_CHECKING:
    from chancy.postgres.sync import SyncPostgresBroker


class OutcomeWaiter(Protocol):
    """What waits for jobs: `CompletionWaiter`, `RoutedWaiter`, or what stands in."""

    async def wait(self, id: UUID, timeout_s: float | None) -> QueuedJob: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute:
    """What an application uses instead of its database."""

    broker: Broker
    clock: Clock
    finishes: OutcomeWaiter
    store: BlockingStore
    waiting: BlockingWait


class Wiring:
    """Makes what an application works on, once for its event loop and once for its threads.

    :param hooks: have what makes the brokers of plugins. Without any nothing is routed.
    :param queues: of the application.
    """

    def __init__(self, hooks: Hooks, context: BrokerContext, queues: Iterable[Queue]) -> None:
        self._planes = hooks.brokers(context)
        self._check = hooks.check_queue
        self._clock = context.clock
        self._queues = tuple(queues)

    def make(self, control: Broker) -> tuple[Broker, OutcomeWaiter]:
        """The broker of an event loop, and what waits for its jobs."""
        if not self._planes:
            return control, CompletionWaiter(control, self._clock)
        planes = {name: make() for name, make in self._planes.items()}
        kind = RoutedSqlBroker if isinstance(control, SqlStore) else RoutedBroker
        broker = kind(control, planes, self._clock, self._queues, self._check)
        return broker, RoutedWaiter(broker.planes, self._clock)

    def make_blocking(
        self, store: SyncPostgresBroker, make_control: Callable[[], Broker]
    ) -> tuple[BlockingStore, BlockingWait]:
        """What threads without an event loop call."""

        def make() -> tuple[Broker, BackgroundFinishes]:
            return self.make(make_control())

        background = Background(make)
        if not self._planes:
            return store, background
        planes = {name: make() for name, make in self._planes.items()}
        homes = QueuePlacement(self._queues, planes)
        return RoutedStore(store, planes, background, homes, self._clock), background

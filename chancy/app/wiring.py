"""Builds the broker and the waiter of an application from Postgres and the brokers of plugins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from chancy.app.background_broker import BackgroundBroker
from chancy.app.sync import SyncBroker
from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.clock import Clock
from chancy.plugin.hooks import Hooks
from chancy.plugin.runtime import BrokerContext
from chancy.queue.queue import Queue
from chancy.results.background import JobWaiter
from chancy.results.waiter import CompletionWaiter
from chancy.routing.router import RoutedBroker, RoutedSqlBroker
from chancy.routing.waiter import RoutedWaiter


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute:
    """The parts that replace the database of an application; see `Chancy.replaced`."""

    broker: Broker
    clock: Clock
    finishes: JobWaiter
    sync: SyncBroker
    transaction: Callable[[], AbstractAsyncContextManager[Any]]


class Wiring:
    """Creates the brokers and waiters of an application, for its event loop and for its threads.

    :param hooks: the hooks with the factories of the plugins' brokers. Without any factory,
        nothing is routed.
    :param queues: the queues of the application.
    """

    def __init__(self, hooks: Hooks, context: BrokerContext, queues: Iterable[Queue]) -> None:
        self._factories = hooks.brokers(context)
        self._check = hooks.check_queue
        self._clock = context.clock
        self._queues = tuple(queues)

    def make(self, control: Broker) -> tuple[Broker, JobWaiter]:
        """The broker of an event loop, and the waiter for its jobs."""
        if not self._factories:
            return control, CompletionWaiter(control, self._clock)
        others = {name: make() for name, make in self._factories.items()}
        kind = RoutedSqlBroker if isinstance(control, SqlStore) else RoutedBroker
        broker = kind(control, others, self._clock, self._queues, self._check)
        return broker, RoutedWaiter(broker.brokers, self._clock, broker.broker_of)

    def open_sync(self, schema: str, make_control: Callable[[], Broker]) -> BackgroundBroker:
        """Open the broker for threads without an event loop.

        :raises BrokerUnavailable: the server cannot be reached.
        """
        routed = bool(self._factories)
        sync = BackgroundBroker(lambda: self.make(make_control()), schema, routed=routed)
        try:
            sync.run(lambda _: asyncio.sleep(0))  # the loop opens the broker before its first call
        except BaseException:
            sync.close()
            raise
        return sync

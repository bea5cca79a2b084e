"""Plugins with a second broker: in memory, which can be made unavailable, or in Postgres."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from chancy import Chancy
from chancy.broker.contract import Broker
from chancy.broker.values import Capability
from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import BrokerContext
from chancy.postgres.broker import PostgresBroker
from chancy.queue.queue import Queue
from chancy.testing.clock import RealTime
from chancy.testing.memory import MemoryBroker
from chancy.testing.store import MemoryStore

#: Attributes that work while the broker is unavailable, as they are local.
_LOCAL = {"check_queue", "capabilities", "close", "away", "store", "asked"}


class FailingBroker(MemoryBroker):
    """Raises `BrokerUnavailable` from every call while ``plugin.away``."""

    def __init__(self, plugin: TwoBrokers) -> None:
        super().__init__(store=plugin.store)
        self._plugin = plugin

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name.startswith("_") or name in _LOCAL or not callable(found):
            return found
        plugin: TwoBrokers = super().__getattribute__("_plugin")
        if not plugin.away:
            return found

        async def fail(*args: object, **kwargs: object) -> None:
            raise BrokerUnavailable("the other broker is away")

        return fail

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._plugin.offers

    def check_queue(self, queue: Queue) -> None:
        if queue.broker_options.keys() - {"shards"}:
            raise ConfigurationError(f"queue {queue.name!r}: memory takes the option shards alone")


class TwoBrokers(Plugin):
    """Supplies the broker ``memory``; all of its instances share their jobs."""

    def __init__(self) -> None:
        self.store = MemoryStore(RealTime())
        self.away = False
        self.offers = frozenset({Capability.NOTICES, Capability.UNIQUE})

    def brokers(self, context: BrokerContext) -> Mapping[str, Callable[[], Broker]]:
        return {"memory": lambda: FailingBroker(self)}

    @property
    def funcs(self) -> list[str]:
        """The functions of the unfinished jobs in this broker."""
        return [row.pushed.func.rpartition(".")[2] for row in self.store.live.values()]


class _PostgresOfQueues(PostgresBroker):
    def check_queue(self, queue: Queue) -> None: ...


class SecondPostgres(Plugin):
    """Supplies the broker ``second``, another Postgres without the tables of plugins."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def brokers(self, context: BrokerContext) -> Mapping[str, Callable[[], Broker]]:
        return {"second": lambda: _PostgresOfQueues(self.dsn)}


def make() -> Chancy:
    """An application for the command line."""
    return Chancy(plugins=[TwoBrokers()])

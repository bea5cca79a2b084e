"""The broker and the ``sync_…`` calls of an application, on Django's connections.

Their statements run in the transaction of the calling thread, as any query of Django does.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from django.db import ProgrammingError, connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.transaction import Atomic

from chancy.app.app import Chancy
from chancy.app.sync import SyncBroker
from chancy.broker.contract import Broker
from chancy.broker.values import Cancellation, PreparedJob
from chancy.errors import ConfigurationError, StatementFailed
from chancy.fork_lock import ForkLock
from chancy.job.definition import QueuedJob
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.catalog import Catalog
from chancy.postgres.claim.claims import PostgresClaims
from chancy.postgres.connections.lane import Lane
from chancy.postgres.drivers.base import STATEMENT_DEADLINE_S, Connection, Row
from chancy.postgres.promotions import Promotions
from chancy.postgres.push.bulk import gathered
from chancy.postgres.push.statement import insertion, stand_ins
from chancy.postgres.settle.settlements import Settlements
from chancy.postgres.within import bind_sync, run_blocking
from chancy.queue.queue import Queue
from chancy.routing.router import RoutedBroker

T = TypeVar("T")


class ConnectionBroker(PostgresBroker):
    """A broker whose statements run on Django's connection of the calling thread.

    Its coroutines await nothing, so `run_blocking` runs them. Errors are those of ``django.db``.

    :param alias: the database in ``DATABASES``.
    """

    def __init__(self, alias: str, schema: str) -> None:
        super().__init__(_no_session, schema=schema)
        self.alias = alias
        lane = _ConnectionLane(self)
        self._claiming = self._settling = self._upkeeping = self._serving = lane
        self._claims = PostgresClaims(lane, self.sql)
        self._promotions = Promotions(lane, self.sql)
        self._settlements = Settlements(lane, self.sql)
        self._upkeep = Catalog(self.fetch, self.sql)

    def __repr__(self) -> str:
        return f"ConnectionBroker({self.alias!r}, schema={self.schema!r})"

    async def open(self) -> None:
        """Nothing to open: Django connects when it is needed."""

    async def close(self) -> None:
        """Nothing to close."""

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        """Run one statement on Django's connection."""
        return bind_sync(connections[self.alias])(sql, *params)

    async def command(self, sql: str) -> None:
        """Run statements without parameters on Django's connection."""
        with connections[self.alias].cursor() as cursor:
            cursor.execute(sql)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Any]:
        """A transaction of Django, or a savepoint in one."""
        with Atomic(self.alias, savepoint=True, durable=False):
            yield self

    async def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        return self._insert(connections[self.alias] if within is None else within, jobs)

    async def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        if within is None:
            # A savepoint: without one, an error would roll back the caller's transaction.
            with Atomic(self.alias, savepoint=True, durable=False):
                return await self.push_many(chunks, within=connections[self.alias])
        found: dict[UUID, UUID] = {}
        for jobs in gathered(chunks):
            found |= self._insert(within, jobs)
        return found

    def _insert(self, within: object, jobs: Sequence[PreparedJob]) -> Mapping[UUID, UUID]:
        if not jobs:
            return {}
        statement, parameters = insertion(self.sql, jobs, new=False, guarded=False)
        return stand_ins(self.sql, statement, bind_sync(within)(statement, *parameters))

    async def queues(self, name: str | None = None) -> Sequence[Queue]:
        """Read queues in a savepoint: the role of a web process may not be allowed to, and the
        caller's transaction must survive the error."""
        try:
            with Atomic(self.alias, savepoint=True, durable=False):
                return await super().queues(name)
        except ProgrammingError as error:
            raise StatementFailed(str(error)) from error

    async def cancel(self, ids: Sequence[UUID]) -> Mapping[UUID, Cancellation]:
        """As `PostgresBroker.cancel`, but leaves out jobs that another transaction has locked."""
        rows = await self.fetch(self.sql.cancel, list(dict.fromkeys(ids)))
        return {id: Cancellation(outcome) for id, outcome in rows if outcome != "busy"}


class _ConnectionLane(Lane):
    """The lane of a `ConnectionBroker`: Django's connection runs one statement at a time anyway."""

    def __init__(self, broker: ConnectionBroker) -> None:
        super().__init__(_no_session)
        self._broker = broker

    async def fetch(
        self, sql: str, *params: object, deadline_s: float = STATEMENT_DEADLINE_S
    ) -> Sequence[Row]:
        return await self._broker.fetch(sql, *params)

    async def ready(self) -> int:
        return self.generation

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        async with self._broker.transaction() as session:
            yield session


def _no_session() -> NoReturn:
    raise ConfigurationError("this broker has no sessions of its own: it uses Django's connections")


class ConnectionCalls:
    """The broker of the ``sync_…`` calls; see `chancy.app.sync.SyncBroker`.

    :param open_: opens a broker with sessions of its own, which waits for results. It also runs the
        other calls of an application with brokers of plugins, whose jobs are not in this database.
    """

    def __init__(self, chancy: Chancy, alias: str, open_: Callable[[], SyncBroker]) -> None:
        self.broker = ConnectionBroker(alias, chancy.schema)
        self._routed = isinstance(chancy.broker, RoutedBroker)
        self._open = open_
        self._lock = ForkLock()
        self._opened: SyncBroker | None = None
        self._name: object = None
        connection_created.connect(self._connected)

    @property
    def _background(self) -> SyncBroker:
        name = connections[self.broker.alias].settings_dict["NAME"]
        with self._lock:
            # A test run replaces the database.
            stale = self._opened if self._name != name else None
            if self._opened is None or stale is not None:
                self._opened, self._name = self._open(), name
            opened = self._opened
        if stale is not None:
            stale.close()
        return opened

    def _connected(self, *, connection: Any, **_: Any) -> None:
        """Close the sessions before Django drops a test database, or copies it.

        The server does neither while a session is open.
        """
        if connection.alias == NO_DB_ALIAS:
            self.close()

    @property
    def connection(self) -> object | None:
        """Django's connection, unless it commits each statement at once."""
        connection = connections[self.broker.alias]
        return None if connection.get_autocommit() else connection

    def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        if self._routed:
            here = connections[self.broker.alias] if within is None else within
            return self._background.push(jobs, within=here)
        return run_blocking(self.broker.push(jobs, within=within))

    def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        if not self._routed:
            return run_blocking(self.broker.push_many(chunks, within=within))
        if within is not None:
            return self._background.push_many(chunks, within=within)
        with Atomic(self.broker.alias, savepoint=True, durable=False):
            return self._background.push_many(chunks, within=connections[self.broker.alias])

    def run(self, work: Callable[[Broker], Awaitable[T]], *, waits: bool = False) -> T:
        if self._routed or waits:
            return self._background.run(work)
        return self.here(work)

    def here(self, work: Callable[[ConnectionBroker], Awaitable[T]]) -> T:
        """Run a coroutine function on Django's connection."""

        async def call() -> T:
            return await work(self.broker)

        return run_blocking(call())

    def begin(
        self, id: UUID, timeout_s: float | None, *, stored: bool = False
    ) -> Future[QueuedJob]:
        return self._background.begin(id, timeout_s, stored=stored)

    def close(self) -> None:
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

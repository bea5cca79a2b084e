"""The application: the one place where broker, registry and plugins are put together."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self
from uuid import UUID

from chancy.app.default_plugins import compose
from chancy.app.diagnosis import Reason, diagnose
from chancy.app.lifetime import Lifetime
from chancy.app.preparation import JobPreparation, chunks, several_jobs
from chancy.app.sync import BlockingCalls, BlockingStore, BlockingWait
from chancy.app.wiring import Substitute, Wiring
from chancy.broker.contract import Broker
from chancy.broker.optional import SqlStore
from chancy.broker.values import (
    CHUNK,
    Cancellation,
    JobFilter,
    PreparedJob,
    QueueCounts,
    WorkerRecord,
)
from chancy.checks import check_instance, resolve_dsn
from chancy.clock import Clock, SystemClock
from chancy.errors import ConfigurationError
from chancy.job.definition import Job, QueuedJob, R
from chancy.job.registry import Registry
from chancy.plugin.hooks import Hooks
from chancy.plugin.plugin import Plugin
from chancy.plugin.runtime import BrokerContext
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers.base import Connection
from chancy.postgres.schema import migrate as tables
from chancy.postgres.schema.component import Component
from chancy.queue.queue import Queue, check_resume_at, name_of, queue_of, queues_of
from chancy.results.reference import Reference, References, checked, reference_to, result_of
from chancy.routing.placement import check_move
from chancy.routing.router import RoutedBroker
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD


class Chancy(BlockingCalls):
    """An application of chancy: pushes jobs, and tells what becomes of them.

    Used as ``async with Chancy(dsn) as chancy`` or, with the ``sync_…`` calls, as
    ``with Chancy(dsn) as chancy``.

    :param dsn: where Postgres is; the environment variable ``CHANCY_DSN`` unless given.
    :param schema: the schema of the tables. Applications in two schemas do not see each other.
    :param queues: declared by each worker that starts, if they are not there yet.
    :param plugins: put over the default ones; a plugin replaces the one of its identifier. A text
        is the identifier of an installed plugin, made with the settings that it has by default.
    :param no_default_plugins: use ``plugins`` alone: without any, nothing is retried or rescued.
    :param allow: patterns of functions that rows may name although nothing registered them here,
        for example ``shop.jobs.*``.
    :param listen_dsn: reaches the server itself, where ``dsn`` goes through a pooler.
    :param max_payload: bytes that the arguments, the meta, or the result of a job may take.
    :param driver: ``asyncpg`` or ``psycopg``.
    :param pool_size: sessions for callers, at most; see `chancy.postgres.broker.PostgresBroker`.
    :param broker: instead of Postgres, and ``clock`` instead of this machine's: for tests.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str = "chancy",
        queues: Iterable[Queue] = (),
        plugins: Iterable[Plugin | str] = (),
        no_default_plugins: bool = False,
        allow: Iterable[str] = (),
        listen_dsn: str | None = None,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        driver: Literal["asyncpg", "psycopg"] = "asyncpg",
        pool_size: int = 10,
        broker: Broker | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._dsn = resolve_dsn(dsn)
        self.schema = schema
        self.queues = queues_of(queues)
        self.clock = clock or SystemClock()
        self.registry = Registry(allow)
        self.max_payload = max_payload
        self.hooks = Hooks(compose(plugins, bare=no_default_plugins))
        self._intake = JobPreparation(self.registry, max_payload, self.queues, lambda: self.broker)
        self._pool_size = pool_size
        self._make_broker = functools.partial(
            PostgresBroker, schema=schema, listen_dsn=listen_dsn, driver=driver
        )
        #: The broker that keeps queues and workers, without what plugins put beside it.
        self.control = broker or self._make_broker(self.dsn, pool_size=pool_size)
        context = BrokerContext(
            schema=schema,
            postgres=isinstance(self.control, SqlStore),
            clock=self.clock,
            max_payload=max_payload,
        )
        self._assembly = Wiring(self.hooks, context, self.queues)
        self.broker, self._finishes = self._assembly.make(self.control)
        self._opening = Lifetime(self.broker, self._finishes)
        self._instead: Substitute | None = None
        self.hooks.check_broker(self.control)
        for queue in self.queues:
            self.broker.check_queue(queue)

    @property
    def dsn(self) -> str:
        """The DSN, or `ConfigurationError` if there is none."""
        if not self._dsn:
            raise ConfigurationError("no DSN: pass Chancy(dsn) or set CHANCY_DSN")
        return self._dsn

    async def __aenter__(self) -> Self:
        await self._opening.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._opening.leave()

    # Pushing

    async def push(
        self, job: Job[R], *, within: object | None = None, validate: bool = True
    ) -> Reference[R]:
        """Store a job. When this returns the job exists, and a worker has been woken.

        :param within: a connection in a transaction of the caller's: the job exists if that
            commits. See ``chancy.postgres.within.ACCEPTED``.
        :param validate: False to push a function that this process cannot import.
        :raises PushError: the job cannot be stored; nothing was written.
        :raises BrokerError: the database did not take it within 15 seconds.
        """
        prepared = self._intake.prepare(job, validate=validate)
        found = await self.broker.push([prepared], within=within)
        return reference_to(prepared.id, found, self)

    async def push_many(
        self, jobs: Iterable[Job[R]], *, within: object | None = None, validate: bool = True
    ) -> References[R]:
        """Store any number of jobs in their order, all or none of them.

        The jobs are taken from the iterable 1,000 at a time, so that a generator of millions
        needs little memory. They are in one transaction, ``within`` or one of their own. Where
        their queues live in several brokers, this is true of the jobs of each broker: if one of
        them refuses its own, those of others may be stored; see `RoutedBroker`.
        """
        references = References[R](self)
        prepared = self._prepared(jobs, references, validate=validate)
        references.replace(await self.broker.push_many(prepared, within=within))
        return references

    def _prepared(
        self, jobs: Iterable[Job[R]], references: References[R], *, validate: bool
    ) -> Iterator[list[PreparedJob]]:
        for taken in chunks(several_jobs(jobs), CHUNK):
            prepared = self._intake.prepare_all(taken, validate=validate)
            references.extend([job.id for job in prepared])
            yield prepared

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """A transaction on a session of the pool, to be passed as ``within``."""
        return self._postgres("transaction").transaction()

    # Looking

    async def get_job(self, id: UUID) -> QueuedJob | None:
        """A job, finished or not; None if there is none."""
        return (await self.broker.get([checked(id)])).get(id)

    async def wait_for(self, id: UUID, timeout_s: float | None = None) -> QueuedJob:
        """Wait until a job is finished; see `chancy.results.reference.Reference.wait`."""
        return await self._finishes.wait(checked(id), timeout_s)

    def read_result(self, job: QueuedJob) -> Any:
        """What the function of a finished job returned: see `Reference.result`."""
        return result_of(job, self.registry.known(job.func))

    async def get_jobs(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        return await self.broker.get([checked(id) for id in ids])

    async def find_jobs(self, wanted: JobFilter) -> Sequence[QueuedJob]:
        """Jobs by a filter, newest first."""
        return await self.broker.find(
            check_instance(wanted, JobFilter, "wanted", "give JobFilter(...)")
        )

    async def cancel(self, *ids: UUID) -> Mapping[UUID, Cancellation]:
        """Cancel jobs that wait and ask running ones to stop."""
        return await self.broker.cancel([checked(id) for id in ids])

    async def run_now(self, *ids: UUID) -> frozenset[UUID]:
        """Let scheduled jobs run now, retries too; gives the ids of those that were scheduled."""
        return await self.broker.run_now([checked(id) for id in ids])

    async def why(self, id: UUID) -> Sequence[Reason]:
        """Say why a job has not run, or is not finished; what weighs most comes first."""
        return await diagnose(self.broker, checked(id), lambda job: self.hooks.why_held(self, job))

    async def counts(self) -> Mapping[str, QueueCounts]:
        return await self.broker.counts()

    async def get_workers(self) -> Sequence[WorkerRecord]:
        return await self.broker.workers()

    # Queues

    async def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        """Store a queue if there is none of its name; with ``upsert`` change its settings.

        Workers follow within a second. An existing queue's pause stays as it is.

        :raises ConfigurationError: its broker is not supplied here, or cannot keep such a queue,
            or would change while the one it has holds unfinished jobs that nobody would run.
        """
        self.broker.check_queue(queue_of(queue))
        if upsert and not self._routed:
            check_move(await self.broker.queues(), queue, None)
        return await self.broker.declare(queue, upsert=upsert)

    async def get_queues(self) -> Sequence[Queue]:
        return await self.broker.queues()

    async def pause_queue(self, name: str, *, resume_at: datetime | None = None) -> bool:
        """Let no more jobs of a queue be claimed, until ``resume_at`` or `resume_queue`."""
        return await self.broker.pause(name_of(name), resume_at=check_resume_at(resume_at, name))

    async def resume_queue(self, name: str) -> bool:
        return await self.broker.resume(name_of(name))

    async def delete_queue(self, name: str) -> bool:
        """Forget a queue. Its jobs stay, and run once it is declared again."""
        return await self.broker.delete_queue(name_of(name))

    # Tables

    async def migrate(self) -> None:
        """Bring the tables of the core and of the plugins up to date.

        Safe to call from many processes at once.
        """
        await asyncio.to_thread(self.sync_migrate)

    async def check_tables(self) -> None:
        """Raise `SchemaMismatch` unless all tables are at the revisions of this code."""
        broker = self.control
        if not isinstance(broker, PostgresBroker):
            return
        components = self.hooks.components
        found = await tables.find_revisions(broker.fetch, self.schema, components)
        tables.check(found, self.schema, components)

    def _postgres(self, what: str) -> PostgresBroker:
        if not isinstance(self.control, PostgresBroker):
            raise ConfigurationError(f"{what} needs the Postgres broker, not {self.control!r}")
        return self.control

    @contextmanager
    def replaced(self, by: Substitute) -> Generator[None]:
        """Use something else instead of the database for a while; see `chancy.testing.sandbox`."""
        before = vars(self).copy()
        self.control = self.broker = by.broker
        self.clock, self._finishes = by.clock, by.finishes
        self._opening = Lifetime(by.broker, by.finishes)
        self._sync, self._background, self._instead = by.store, by.waiting, by
        try:
            yield
        finally:
            vars(self).update(before)

    # For the calls without an event loop

    def _open_blocking(self) -> tuple[BlockingStore, BlockingWait]:
        if self._instead is not None:
            return self._instead.store, self._instead.waiting
        from chancy.postgres.sync import SyncPostgresBroker

        sync = SyncPostgresBroker(self.dsn, schema=self.schema, pool_size=self._pool_size)
        sync.open()
        return self._assembly.make_blocking(sync, lambda: self._make_broker(self.dsn, pool_size=2))

    @property
    def _routed(self) -> bool:
        return isinstance(self.broker, RoutedBroker)

    def _prepare(self, job: Job[Any], *, validate: bool) -> PreparedJob:
        return self._intake.prepare(job, validate=validate)

    def _tables(self) -> tuple[str, str, tuple[Component, ...]]:
        return self.dsn, self.schema, self.hooks.components

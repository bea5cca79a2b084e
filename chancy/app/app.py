"""`Chancy`, the application: it combines the broker, the registry and the plugins."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self, overload
from uuid import UUID

from chancy.app.backlog import Backlog, backlogs
from chancy.app.default_plugins import compose
from chancy.app.diagnosis import Reason, diagnose
from chancy.app.known_queues import KnownQueues
from chancy.app.lifetime import Lifetime
from chancy.app.preparation import JobPreparation, not_a_job, noting, parts
from chancy.app.selection import JobSelection, SelectedJobs
from chancy.app.sync import BlockingCalls, SyncBroker, T
from chancy.app.wiring import Substitute, Wiring
from chancy.broker.contract import Broker
from chancy.broker.optional import Releasing, SqlStore, StoppingWorkers, now_of
from chancy.broker.values import (
    CHUNK,
    Cancellation,
    JobFilter,
    PreparedJob,
    QueueCounts,
    WorkerRecord,
)
from chancy.checks import check_instance, check_timeout, resolve_dsn
from chancy.clock import Clock, SystemClock
from chancy.containment import describe
from chancy.errors import BrokerError, ConfigurationError, PushError
from chancy.job.definition import NAMED_QUEUES, Job, QueuedJob, R
from chancy.job.registry import Registry
from chancy.plugin.hooks import Hooks
from chancy.plugin.plugin import Plugin
from chancy.plugin.pushing import (
    PreparedPush,
    PrepareStored,
    Pushable,
    PushContext,
    PushWay,
)
from chancy.plugin.runtime import BrokerContext
from chancy.plugin.tables import PayloadTable
from chancy.postgres.broker import PostgresBroker
from chancy.postgres.drivers.base import Connection
from chancy.postgres.schema import migrate as tables
from chancy.postgres.schema.status import check_shard
from chancy.postgres.within import bind
from chancy.queue.queue import (
    Queue,
    check_pause,
    check_resume_at,
    name_of,
    queue_of,
    queues_of,
)
from chancy.results.reference import Reference, References, checked, reference_to, result_of
from chancy.routing.router import RoutedBroker
from chancy.serialization.codec import DEFAULT_MAX_PAYLOAD

#: The maximum bytes of a job that is stored already. `max_payload` may not have applied to it: it
#: may be a step with results of others, have been pushed in SQL, or have checkpoints. Postgres
#: stores no more.
_MAX_STORED = 2**28


class Chancy(BlockingCalls):
    """An application: pushes jobs, queries and cancels them, and manages queues.

    Used as ``async with Chancy(dsn) as chancy`` or, with the ``sync_…`` calls, as
    ``with Chancy(dsn) as chancy``.

    :param dsn: the Postgres database; the default is the environment variable ``CHANCY_DSN``.
        Needed when the application is opened.
    :param schema: the schema of the tables. Applications in different schemas are isolated.
    :param queues: queues that each worker declares when it starts, unless they exist.
    :param plugins: added to the default plugins; a plugin replaces the default one of the same
        identifier. A string is the identifier of an installed plugin, made with default settings.
    :param no_default_plugins: use only ``plugins``. Without any, nothing is retried or rescued.
    :param allow: patterns of functions that jobs may name without being registered here, for
        example ``shop.jobs.*``.
    :param listen_dsn: a direct connection to the server, if ``dsn`` goes through a pooler.
    :param max_payload: the maximum bytes of the arguments, the meta, or the result of a job.
    :param driver: ``asyncpg`` or ``psycopg``.
    :param pool_size: the maximum number of sessions for callers; see
        `chancy.postgres.broker.PostgresBroker`.
    :param strict_queues: refuse jobs for a queue that this application does not declare, and that
        does not exist. Without it they are stored, and logged as ``queue_undeclared``.
    :param broker: replaces Postgres, for tests.
    :param clock: replaces the system's clock, for tests.
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
        strict_queues: bool = False,
        broker: Broker | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._dsn = resolve_dsn(dsn)
        self._resolve: Callable[[str | None], str] | None = None
        self.schema = schema
        self.queues = queues_of(queues)
        self._own_queues.update(queue.name for queue in self.queues)
        self.clock = clock or SystemClock()
        self._known = KnownQueues(self._own_queues, self.clock, strict=strict_queues)
        self.registry = Registry(allow)
        self.max_payload = max_payload
        #: Where other processes import the application, as ``module:attribute``; set by ``--app``.
        self.import_path: str | None = None
        self.hooks = Hooks(compose(plugins, bare=no_default_plugins))
        self._preparation = JobPreparation(
            self.registry,
            max_payload,
            self.queues,
            lambda: self.broker,
            self.hooks.pushing,
            None if self.hooks.payloads is None else self.hooks.payloads.arguments,
        )
        self._make_broker = functools.partial(
            PostgresBroker,
            schema=schema, listen_dsn=listen_dsn, driver=driver, pool_size=pool_size,
        )  # fmt: skip
        #: The broker that stores queues and workers, without the brokers of plugins.
        self.control = broker or self._make_broker(lambda: self.dsn)
        context = BrokerContext(
            schema=schema,
            postgres=isinstance(self.control, SqlStore),
            clock=self.clock,
            max_payload=max_payload,
        )
        self._wiring = Wiring(self.hooks, context, self.queues)
        self.broker, self._waiter = self._wiring.make(self.control)
        self._before_close: list[Callable[[], Awaitable[None]]] = []
        self._lifetime = Lifetime(self.broker, self._waiter, self._before_close)
        self._substitute: Substitute | None = None
        self.hooks.check_broker(self.control)
        for queue in self.queues:
            self.broker.check_queue(queue)
            self.hooks.check_rules(queue)

    @property
    def dsn(self) -> str:
        """The DSN, or `ConfigurationError` if there is none.

        If ``CHANCY_DSN`` is not set when the application is created, it is read at the first use.
        """
        if self._resolve is not None:
            return self._resolve(self._dsn)
        self._dsn = self._dsn or resolve_dsn(None)
        if not self._dsn:
            raise ConfigurationError(
                'this application has no DSN: pass Chancy("postgresql://…"), or set CHANCY_DSN '
                "(commands take --dsn, too)"
            )
        return self._dsn

    def bind_dsn(self, resolve: Callable[[str | None], str]) -> None:
        """Make a function return the DSN from now on. It is called whenever a session opens.

        :param resolve: receives the DSN that the application was created with, or None.
        """
        self._resolve = resolve

    async def __aenter__(self) -> Self:
        await self._lifetime.enter()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._lifetime.leave()

    def before_close(self, call: Callable[[], Awaitable[None]]) -> None:
        """Call and await a function each time the application closes, while it is still open.

        Use it for background work. The function that was added last is called first. An error is
        raised after the other functions have run and the broker has closed.
        """
        self._before_close.append(call)

    # Pushing

    @overload
    async def push(
        self, job: Job[R], *, within: object | None = None, validate: bool = True
    ) -> Reference[R]: ...
    @overload
    async def push(
        self, job: Pushable[T], *, within: object | None = None, validate: bool = True
    ) -> T: ...
    async def push(
        self, job: Job[Any] | Pushable[Any], *, within: object | None = None, validate: bool = True
    ) -> Any:
        """Push a job. When this returns, the job is stored and a worker has been notified.

        :param job: a job, or a workflow.
        :param within: a connection with an open transaction of the caller: the job is stored when
            it commits. See ``chancy.postgres.within.ACCEPTED``.
        :param validate: False to push a function that this process cannot import.
        :raises PushError: the job cannot be stored; nothing was written.
        :raises BrokerError: the database did not store it within 15 seconds.
        """
        if not isinstance(job, Job):
            pushed = self._prepare_other(job, within, validate=validate)
            await pushed.store(self.broker, None if within is None else bind(within))
            return pushed.reference
        prepared = self._prepare(job, within, validate=validate)
        if unknown := self._known.unknown([prepared]):
            await self._known.check(unknown, self.broker)
        found = await self.broker.push([prepared], within=within)
        return reference_to(prepared.id, found, self, stored=within is None)

    async def push_many(
        self,
        jobs: Iterable[Job[R]],
        *,
        within: object | None = None,
        validate: bool = True,
        commit_every: int | None = None,
    ) -> References[R]:
        """Push any number of jobs in order, all or none of them.

        The iterable is consumed as the jobs are stored, up to 1,000 jobs or 8 MB of arguments at a
        time, so a generator of millions needs little memory. The jobs are stored in one
        transaction: ``within``, or a new one. If their queues are in several brokers, each broker
        stores all or none of its own jobs: if one fails, the jobs of others may be stored; see
        `RoutedBroker`. After an error ``within`` may contain jobs of the call: roll it back.

        :param commit_every: commit each time this many jobs are stored, so that workers start on
            them before the push ends. If a later job cannot be stored, the jobs before stay pushed,
            and a note of the error has their number. Not allowed with ``within``.
        """
        references, unknown = References[R](self, stored=within is None), set[str]()
        if self._known.strict:
            await self._known.refresh(self.broker)
        for part in parts(jobs, commit_every, within):
            with noting(references):
                prepared = self._prepared(part, references, unknown, within, validate=validate)
                references.replace(await self.broker.push_many(prepared, within=within))
        if unknown:
            await self._known.check(unknown, self.broker)
        return references

    def before_push(self, job: Job[Any], context: PushContext) -> Job[Any]:
        """Apply the hook `pushing` of the plugins to a job; for plugins that store jobs.

        :raises Exception: the exception with which a plugin refuses the job.
        """
        return job if self.hooks.pushing is None else self.hooks.pushing(job, context)

    @property
    def prepare_stored(self) -> PrepareStored | None:
        """Applies the hook `pushing` to a job that is stored already; for plugins that push such
        jobs. None if no plugin overrides the hook."""
        return None if self.hooks.pushing is None else self._prepare_stored

    def _prepare_stored(self, job: Job[Any], way: PushWay) -> PreparedJob:
        try:
            if self.hooks.payloads is not None:
                plain = self.hooks.payloads.plain(job.func, job.arguments)
                job = replace(job, arguments=plain)
            return self._preparation.prepare(
                job, validate=False, context=PushContext(way), max_payload=_MAX_STORED
            )
        except Exception:
            raise
        except BaseException as error:  # of a plugin: a sync call cannot be cancelled
            raise PushError(f"job {job.func}: a plugin failed: {describe(error)}") from error

    def encode_arguments(self, func: str, arguments: str, queue: str | None) -> str:
        """Encode validated JSON arguments for storage; for plugins that store jobs.

        :param queue: the queue of the job, or None.
        :raises PushError: a rule of the queue could not read them.
        """
        return self._preparation.stored(func, arguments, queue)

    def decode_result(self, func: str, result: Any) -> Any:
        """Decode a stored result, as a JSON value.

        :raises UnreadablePayload: it is encrypted with a key that this application does not have.
        """
        return result if self.hooks.payloads is None else self.hooks.payloads.result(func, result)

    def encode_line(self, func: str, line: str) -> str:
        """Encode a logged line of a job for storage; for plugins that store lines."""
        return line if self.hooks.payloads is None else self.hooks.payloads.line(func, line)

    def decode_line(self, stored: str) -> str:
        """Decode a stored line.

        :raises UnreadablePayload: it is encrypted with a key that this application does not have.
        """
        return stored if self.hooks.payloads is None else self.hooks.payloads.read_line(stored)

    @property
    def payload_tables(self) -> Sequence[PayloadTable]:
        """The tables, of all plugins, with payloads that a codec has encoded."""
        return self.hooks.payload_tables

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """A transaction on a session of the pool, to pass as ``within`` until it ends."""
        if self._substitute is not None:
            return self._substitute.transaction()
        if not isinstance(self.control, PostgresBroker):
            raise ConfigurationError(f"transaction needs the Postgres broker, not {self.control!r}")
        return self.control.transaction()

    # Jobs

    async def get_job(self, id: UUID) -> QueuedJob | None:
        """A job, finished or not; None if it does not exist."""
        return (await self.broker.get([checked(id)])).get(id)

    async def wait_for(
        self, id: UUID, timeout_s: float | None = None, *, stored: bool = False
    ) -> QueuedJob:
        """Wait until a job is finished; see `chancy.results.reference.Reference.wait`.

        :param stored: the push of the job has been committed, so a missing job is gone. Otherwise a
            missing job may still be pushed, and the wait continues.
        """
        check_timeout(timeout_s)
        return await self._waiter.wait(checked(id), timeout_s, stored=stored)

    def read_result(self, job: QueuedJob) -> Any:
        """The return value of a finished job: see `Reference.result`."""
        if self.hooks.payloads is not None:
            job = self.hooks.payloads.job(job)
        return result_of(job, self.registry.known(job.func))

    async def get_jobs(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        """Jobs by id; ids that do not exist are left out."""
        return await self.broker.get([checked(id) for id in ids])

    async def find_jobs(self, wanted: JobFilter) -> Sequence[QueuedJob]:
        """Jobs that match a filter, newest first."""
        return await self.broker.find(
            check_instance(wanted, JobFilter, "wanted", "pass JobFilter(...)")
        )

    def select_jobs(self, wanted: JobSelection) -> SelectedJobs:
        """Select jobs by conditions, to cancel, run, reschedule, move, prioritize or delete them in
        bulk."""
        check_instance(wanted, JobSelection, "wanted", "pass JobSelection(...)")
        return SelectedJobs(self.broker, self.control, wanted)

    async def cancel(self, *ids: UUID) -> Mapping[UUID, Cancellation]:
        """Cancel waiting jobs, and ask running jobs to stop."""
        return await self.broker.cancel([checked(id) for id in ids])

    async def run_now(self, *ids: UUID) -> frozenset[UUID]:
        """Run scheduled jobs now, including retries; returns the ids that were scheduled."""
        return await self.broker.run_now([checked(id) for id in ids])

    async def release(
        self, *ids: UUID, key: str | None = None, within: object | None = None
    ) -> int:
        """Release jobs that were pushed `with_hold`: those with these ids, or all with this key.

        They become pending, in their order, behind the pending jobs of their queues, or scheduled
        if they are not due yet. Jobs that are held for another reason stay held.

        :param within: a connection with an open transaction of the caller. Only jobs in the
            application's own database are then released, when it commits.
        :returns: the number of released jobs. A job that another transaction has locked is left
            out.
        :raises BrokerError: a database is unavailable; jobs in all others are released.
        """
        if (key is None) != bool(ids):
            raise ConfigurationError("release: pass either ids, or key=")
        broker = self.control
        if not isinstance(broker, Releasing):
            raise ConfigurationError(f"release needs jobs on hold, which {broker!r} does not offer")
        some = None if key is not None else [checked(id) for id in ids]
        released = await _release(broker, some, key, within)
        if within is not None or not isinstance(self.broker, RoutedBroker):
            return released
        failure: BrokerError | None = None
        for name, other in self.broker.brokers.others.items():
            if isinstance(other, Releasing) and (some is None or released < len(some)):
                try:
                    await self.broker.brokers.ready(name)
                    released += await _release(other, some, key, None)
                except BrokerError as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return released

    async def why(self, id: UUID) -> Sequence[Reason]:
        """Explain why a job has not run or is not finished, the most important reason first."""
        return await diagnose(self.broker, checked(id), lambda job: self.hooks.why_held(self, job))

    async def counts(self) -> Mapping[str, QueueCounts]:
        """Unfinished jobs by queue and state; queues without any are left out."""
        return await self.broker.counts()

    async def backlogs(self) -> Mapping[str, Backlog]:
        """Due jobs that no worker has claimed, by queue, the longest wait first.

        Queues without due jobs, and queues outside Postgres, are left out. Costs the same with ten
        million jobs.
        """
        store = self.control
        return await backlogs(store, store.schema) if isinstance(store, SqlStore) else {}

    async def get_workers(self) -> Sequence[WorkerRecord]:
        """The registered workers."""
        return await self.broker.workers()

    async def stop_worker(self, worker_id: UUID) -> bool:
        """Ask a worker to shut down as at SIGTERM: it claims nothing more, its running jobs have
        its shutdown timeout to finish, and the rest are released.

        Returns whether the worker is registered, without waiting until it has stopped. A supervisor
        then starts another worker in its place.

        :raises ConfigurationError: the application does not store its workers in Postgres.
        """
        if not isinstance(self.control, StoppingWorkers):
            raise ConfigurationError(
                f"{self.control!r} cannot ask a worker to stop: send SIGTERM to its process"
            )
        return await self.control.stop_worker(checked(worker_id, "worker"))

    # Queues

    async def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        """Create a queue if it does not exist; with ``upsert``, change its settings.

        Workers apply the change within a second. An existing queue that is paused stays paused.

        :raises ConfigurationError: the application does not supply the queue's broker, or that
            broker does not support such a queue, or the queue's broker would change while the old
            one has unfinished jobs, which no worker would run.
        """
        self.broker.check_queue(queue_of(queue))
        self.hooks.check_rules(queue)
        return await self._declare(self.broker, queue, upsert=upsert)

    def has_queue(self, name: str) -> bool:
        """Whether workers of this application serve a queue by default: ``default``, the declared
        queues, and those that its functions name."""
        return name in self._own_queues or name in NAMED_QUEUES

    async def get_queues(self) -> Sequence[Queue]:
        """All queues, ordered by name."""
        return await self.broker.queues()

    async def pause_queue(self, name: str, *, resume_at: datetime | None = None) -> bool:
        """Stop claiming jobs of a queue, until ``resume_at`` or `resume_queue`.

        Returns whether the queue exists.

        :raises ConfigurationError: ``resume_at`` is over, by the clock of the database.
        """
        until = check_resume_at(resume_at, name_of(name))
        if until is not None:
            check_pause(until, await now_of(self.control), name)
        return await self.broker.pause(name, resume_at=until)

    async def resume_queue(self, name: str) -> bool:
        """Resume a paused queue. Returns whether the queue exists."""
        return await self.broker.resume(name_of(name))

    async def delete_queue(self, name: str) -> bool:
        """Delete a queue. Its jobs are kept and run once it is declared again, in the same broker.

        Returns whether the queue existed.
        """
        return await self.broker.delete_queue(name_of(name))

    # Tables

    async def migrate(self) -> None:
        """Upgrade the tables of the core and of the plugins.

        Safe to call from several processes concurrently.
        """
        await asyncio.to_thread(self.sync_migrate)

    def sync_migrate(self) -> None:
        """`migrate` for code without an event loop."""
        tables.upgrade(self.dsn, self.schema, self.hooks.components)

    async def check_tables(self) -> None:
        """Raise `SchemaMismatch` unless all tables are at the revisions this version needs."""
        broker = self.control
        if not isinstance(broker, PostgresBroker):
            return
        components = self.hooks.components
        found = await tables.find_revisions(broker.fetch, self.schema, components)
        tables.check(found, self.schema, components)

    async def check_shards(self) -> None:
        """Raise `SchemaMismatch` if the tables of another Postgres server are at another revision.

        A server that cannot be reached or asked is left out.
        """
        if not isinstance(self.broker, RoutedBroker):
            return
        for name, broker in self.broker.brokers.others.items():
            if not isinstance(broker, PostgresBroker):
                continue
            with suppress(BrokerError):
                await self.broker.brokers.ready(name)
                found = await tables.find_revisions(broker.fetch, self.schema)
                check_shard(name, found, self.schema)

    @contextmanager
    def replaced(self, by: Substitute) -> Generator[None]:
        """Replace the database while the context is open; see `chancy.testing.sandbox`."""
        before = vars(self).copy()
        self.control = self.broker = by.broker
        self.clock, self._waiter = by.clock, by.finishes
        self._lifetime = Lifetime(by.broker, by.finishes, self._before_close)
        self._sync, self._substitute = by.sync, by
        try:
            yield
        finally:
            vars(self).update(before)

    # For the calls without an event loop

    def _open_sync(self) -> SyncBroker:
        if self._substitute is not None:
            return self._substitute.sync
        return self._wiring.open_sync(self.schema, lambda: self._make_broker(self.dsn))

    def _prepare_other(
        self, value: Pushable[T], within: object | None, *, validate: bool
    ) -> PreparedPush[T]:
        found = self.hooks.prepare_push(self, value, within=within is not None, validate=validate)
        if found is None:
            raise PushError(not_a_job(value))
        return found


async def _release(
    broker: Releasing, ids: Sequence[UUID] | None, key: str | None, within: object | None
) -> int:
    released = 0
    while count := len(await broker.release(ids, key, limit=CHUNK, within=within)):
        released += count
    return released

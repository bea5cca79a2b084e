"""The ``sync_…`` calls of an application, for code without an event loop."""

from __future__ import annotations

import atexit
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, overload
from uuid import UUID

from chancy.app.known_queues import KnownQueues
from chancy.app.preparation import JobPreparation, noting, parts
from chancy.broker.contract import Broker
from chancy.broker.values import PreparedJob
from chancy.checks import check_timeout
from chancy.errors import ConfigurationError, NotOpen, StatementFailed
from chancy.fork_lock import ForkLock
from chancy.job.definition import Job, QueuedJob
from chancy.plugin.hooks import Hooks
from chancy.plugin.pushing import PUSH, PUSH_WITHIN, PreparedPush, Pushable
from chancy.postgres.within import bind_blocking, run_blocking
from chancy.queue.queue import Queue, queue_of
from chancy.results.reference import Reference, References, checked, reference_to
from chancy.routing.placement import check_move
from chancy.routing.router import RoutedBroker

R = TypeVar("R")
T = TypeVar("T")


class SyncBroker(Protocol):
    """The broker of the ``sync_…`` calls: `BackgroundBroker`, or a substitute in tests."""

    @property
    def connection(self) -> object | None:
        """The connection of the calling thread on which pushes run without ``within``, if any."""
        ...

    def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]: ...
    def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]: ...
    def run(self, work: Callable[[Broker], Awaitable[T]], *, waits: bool = False) -> T: ...
    def begin(
        self, id: UUID, timeout_s: float | None, *, stored: bool = False
    ) -> Future[QueuedJob]: ...
    def close(self) -> None: ...


class BlockingCalls:
    """The ``sync_…`` calls of `chancy.app.Chancy`. They are thread-safe.

    The first call connects, and the connections are closed when the process ends. ``with chancy:``
    closes them at the end of the block; calls after it need another block.
    """

    def __init__(self) -> None:
        self._sync: SyncBroker | None = None
        #: The queues of this application: `default`, and the declared ones.
        self._own_queues = {"default"}
        # The number of open `with` blocks of all threads.
        self._inside = 0
        self._entered = False
        self._lock = ForkLock()

    def __enter__(self) -> Self:
        with self._lock:
            if not self._inside:
                self._sync = self._open_sync()
                self._entered = True
            self._inside += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside:
                return
            broker, self._sync = self._sync, None
        if broker is not None:
            broker.close()

    def bind_sync(self, bind: Callable[[Callable[[], SyncBroker]], SyncBroker]) -> None:
        """Make the ``sync_…`` calls use another broker from now on, also outside `with`.

        :param bind: creates the broker; receives a function that opens the replaced one.
        """
        with self._lock:
            self._sync = bind(self._open_sync)
            self._inside += 1

    # Implemented by the application

    def _open_sync(self) -> SyncBroker:
        raise NotImplementedError

    broker: Broker
    hooks: Hooks
    _known: KnownQueues
    _preparation: JobPreparation

    def read_result(self, job: QueuedJob) -> Any:
        """The result of a job, with the type of its function's annotation."""
        raise NotImplementedError

    def _prepare_other(
        self, value: Pushable[T], within: object | None, *, validate: bool
    ) -> PreparedPush[T]:
        raise NotImplementedError

    async def get_job(self, id: UUID) -> QueuedJob | None:
        raise NotImplementedError

    async def wait_for(
        self, id: UUID, timeout_s: float | None = None, *, stored: bool = False
    ) -> QueuedJob:
        raise NotImplementedError

    # The calls

    @property
    def _sync_broker(self) -> SyncBroker:
        """The broker. Without `with`, the first call opens it until the process ends."""
        if (broker := self._sync) is not None:
            return broker
        with self._lock:
            if self._sync is None:
                if self._entered:
                    raise ConfigurationError(
                        "this application was opened and closed by `with chancy:`: make sync_… "
                        "calls inside such a block"
                    )
                self._sync = self._open_sync()
                self._inside += 1
                atexit.register(self.__exit__, None, None, None)
            return self._sync

    @overload
    def sync_push(
        self, job: Job[R], *, within: object | None = None, validate: bool = True
    ) -> Reference[R]: ...
    @overload
    def sync_push(
        self, job: Pushable[T], *, within: object | None = None, validate: bool = True
    ) -> T: ...
    def sync_push(
        self, job: Job[Any] | Pushable[Any], *, within: object | None = None, validate: bool = True
    ) -> Any:
        """`push` for code without an event loop."""
        if not isinstance(job, Job):
            within = self._sync_broker.connection if within is None else within
            pushed = self._prepare_other(job, within, validate=validate)
            if within is None:
                self._sync_broker.run(lambda broker: pushed.store(broker, None))
            else:
                run_blocking(_within(pushed, self.broker, within))
            return pushed.reference
        prepared = self._prepare(job, within, validate=validate)
        if unknown := self._known.unknown([prepared]):
            self._sync_broker.run(partial(self._known.check, unknown))
        found = self._sync_broker.push([prepared], within=within)
        return reference_to(prepared.id, found, self, stored=self._commits(within))

    def sync_push_many(
        self,
        jobs: Iterable[Job[R]],
        *,
        within: object | None = None,
        validate: bool = True,
        commit_every: int | None = None,
    ) -> References[R]:
        """`push_many` for code without an event loop."""
        references, unknown = References[R](self, stored=self._commits(within)), set[str]()
        if self._known.strict:
            self._sync_broker.run(self._known.refresh)
        for part in parts(jobs, commit_every, within):
            with noting(references):
                prepared = self._prepared(part, references, unknown, within, validate=validate)
                references.replace(self._sync_broker.push_many(prepared, within=within))
        if unknown:
            self._sync_broker.run(partial(self._known.check, unknown))
        return references

    def _commits(self, within: object | None) -> bool:
        """Whether a push has committed when it returns."""
        return within is None and self._sync_broker.connection is None

    def sync_get_job(self, id: UUID) -> QueuedJob | None:
        """`get_job` for code without an event loop."""
        checked(id)

        async def get(broker: Broker) -> QueuedJob | None:
            return (await broker.get([id])).get(id)

        return self._sync_broker.run(get)

    def sync_wait_for(
        self, id: UUID, timeout_s: float | None = None, *, stored: bool = False
    ) -> QueuedJob:
        """`wait_for` for code without an event loop.

        One thread of the application listens for all of these calls.
        """
        waiting = self.sync_begin_wait(id, timeout_s, stored=stored)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def sync_begin_wait(
        self, id: UUID, timeout_s: float | None = None, *, stored: bool = False
    ) -> Future[QueuedJob]:
        """Start to wait for a job like `sync_wait_for`, but return at once.

        The future has the job, or the error that `wait_for` raises. Its ``cancel`` ends the wait.
        Its callbacks run in the thread that listens, and must not block.
        """
        check_timeout(timeout_s)
        return self._sync_broker.begin(checked(id), timeout_s, stored=stored)

    def sync_call(self, work: Callable[[Broker], Awaitable[T]], *, waits: bool = False) -> T:
        """Run a coroutine function with the broker of the sync calls, and return its result. For
        plugins that offer calls without an event loop.

        :param waits: the function may wait for commits of other processes.
        """
        return self._sync_broker.run(work, waits=waits)

    def sync_declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        """`declare` for code without an event loop."""
        self.broker.check_queue(queue_of(queue))
        self.hooks.check_rules(queue)
        return self._sync_broker.run(lambda broker: self._declare(broker, queue, upsert=upsert))

    # For both kinds of calls

    def _prepare(self, job: Job[Any], within: object | None, *, validate: bool) -> PreparedJob:
        context = PUSH if within is None else PUSH_WITHIN
        return self._preparation.prepare(job, validate=validate, context=context)

    def _prepared(
        self,
        jobs: Iterable[Job[R]],
        references: References[R],
        unknown: set[str],
        within: object | None,
        *,
        validate: bool,
    ) -> Iterator[list[PreparedJob]]:
        for prepared in self._preparation.prepare_chunks(
            jobs, validate=validate, context=PUSH if within is None else PUSH_WITHIN
        ):
            unknown.update(self._known.unknown(prepared))
            if self._known.strict:
                self._known.report(unknown)
            references.extend([job.id for job in prepared])
            yield prepared

    async def _declare(self, broker: Broker, queue: Queue, *, upsert: bool) -> Queue:
        if upsert and not isinstance(broker, RoutedBroker):
            check_move(await broker.queues(queue.name), queue, None)
        # First: its notification may reach a worker of this application before the call returns.
        known = queue.name in self._own_queues
        self._own_queues.add(queue.name)
        try:
            return await broker.declare(queue, upsert=upsert)
        except (ConfigurationError, NotOpen, StatementFailed):  # after others it may be stored
            if not known:
                self._own_queues.discard(queue.name)
            raise


async def _within(pushed: PreparedPush[Any], broker: Broker, connection: object) -> None:
    await pushed.store(broker, bind_blocking(connection))

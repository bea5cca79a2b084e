"""The ``sync_…`` calls of an application, for code without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.values import PreparedJob
from chancy.errors import ConfigurationError
from chancy.job.definition import Job, QueuedJob
from chancy.postgres.schema import migrate as tables
from chancy.postgres.schema.component import Component
from chancy.queue.queue import Queue, queue_of
from chancy.results.reference import Reference, References, checked, reference_to
from chancy.routing.placement import check_move

R = TypeVar("R")


class BlockingStore(Protocol):
    """The store of the ``sync_…`` calls: `chancy.postgres.sync.SyncPostgresBroker` or another."""

    def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]: ...
    def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]: ...
    def get(self, id: UUID) -> QueuedJob | None: ...
    def queues(self) -> Sequence[Queue]: ...
    def declare(self, queue: Queue, *, upsert: bool = False) -> Queue: ...
    def close(self) -> None: ...


class BlockingWait(Protocol):
    """Waits for jobs in a thread: `chancy.results.background.Background` or another."""

    def begin(self, id: UUID, timeout_s: float | None) -> Future[QueuedJob]: ...
    def close(self) -> None: ...


class BlockingCalls:
    """The ``sync_…`` calls of `chancy.app.Chancy`, used as ``with Chancy(dsn) as chancy``.

    They are thread-safe.
    """

    def __init__(self) -> None:
        self._sync: BlockingStore | None = None
        self._background: BlockingWait | None = None
        # The number of open `with` blocks of all threads.
        self._inside = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        with self._lock:
            if not self._inside:
                self._sync, self._background = self._open_blocking()
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
            background, self._background = self._background, None
        if background is not None:
            background.close()
        if broker is not None:
            broker.close()

    # Implemented by the application

    def _open_blocking(self) -> tuple[BlockingStore, BlockingWait]:
        raise NotImplementedError

    broker: Broker

    @property
    def _routed(self) -> bool:
        """Whether plugins supply brokers beside Postgres."""
        raise NotImplementedError

    def read_result(self, job: QueuedJob) -> Any:
        """The result of a job, with the type of its function's annotation."""
        raise NotImplementedError

    def _prepare(self, job: Job[Any], *, validate: bool) -> PreparedJob:
        raise NotImplementedError

    def _prepared(
        self, jobs: Iterable[Job[R]], references: References[R], *, validate: bool
    ) -> Iterator[list[PreparedJob]]:
        raise NotImplementedError

    def _tables(self) -> tuple[str, str, tuple[Component, ...]]:
        """The DSN, the schema, and the components that own tables beside the core."""
        raise NotImplementedError

    async def get_job(self, id: UUID) -> QueuedJob | None:
        raise NotImplementedError

    async def wait_for(self, id: UUID, timeout_s: float | None = None) -> QueuedJob:
        raise NotImplementedError

    # The calls

    @property
    def _sync_broker(self) -> BlockingStore:
        if self._sync is None:
            raise ConfigurationError("sync_… calls need `with Chancy(dsn) as chancy:`")
        return self._sync

    def sync_push(
        self, job: Job[R], *, within: object | None = None, validate: bool = True
    ) -> Reference[R]:
        """`push` for code without an event loop."""
        prepared = self._prepare(job, validate=validate)
        found = self._sync_broker.push([prepared], within=within)
        return reference_to(prepared.id, found, self)

    def sync_push_many(
        self, jobs: Iterable[Job[R]], *, within: object | None = None, validate: bool = True
    ) -> References[R]:
        """`push_many` for code without an event loop."""
        references = References[R](self)
        prepared = self._prepared(jobs, references, validate=validate)
        references.replace(self._sync_broker.push_many(prepared, within=within))
        return references

    def sync_get_job(self, id: UUID) -> QueuedJob | None:
        """`get_job` for code without an event loop."""
        return self._sync_broker.get(checked(id))

    def sync_wait_for(self, id: UUID, timeout_s: float | None = None) -> QueuedJob:
        """`wait_for` for code without an event loop.

        The first such call of an application starts a thread that listens for all of them.
        """
        waiting = self.sync_begin_wait(id, timeout_s)
        try:
            return waiting.result()
        except BaseException:
            waiting.cancel()
            raise

    def sync_begin_wait(self, id: UUID, timeout_s: float | None = None) -> Future[QueuedJob]:
        """Start to wait for a job as `sync_wait_for` does, and return at once.

        The future has the job, or the error that `wait_for` raises. Its ``cancel`` ends the wait.
        Its callbacks run in the thread that listens, and must not block.
        """
        if self._background is None:
            raise ConfigurationError("sync_… calls need `with Chancy(dsn) as chancy:`")
        return self._background.begin(checked(id), timeout_s)

    def sync_declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        """`declare` for code without an event loop."""
        self.broker.check_queue(queue_of(queue))
        if upsert and not self._routed:
            check_move(self._sync_broker.queues(), queue, None)
        return self._sync_broker.declare(queue, upsert=upsert)

    def sync_migrate(self) -> None:
        """`migrate` for code without an event loop."""
        tables.upgrade(*self._tables())

"""What every store of jobs must do.

A broker is the only part that knows tables. Every call may be repeated: after
`BrokerUnavailable` its outcome is unknown, and the caller makes it again. The suite in
``chancy.testing.conformance`` holds every implementation to the docstrings of this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID

from chancy.attempt.claim import Claim
from chancy.attempt.settlement import Note, Settlement
from chancy.broker.notices import Subscription, Topic
from chancy.broker.transaction import TransactionHook
from chancy.broker.values import (
    Cancellation,
    Capability,
    JobFilter,
    PreparedJob,
    Promotion,
    QueueCounts,
    QueuePosition,
    WorkerRecord,
)
from chancy.job.definition import QueuedJob
from chancy.queue.queue import Queue


class Heartbeat(Protocol):
    """A worker's heartbeat: blocking, with a connection of its own, called from a thread."""

    def beat(self) -> bool:
        """Say that the worker lives. False: it was declared dead, and must take a new id."""
        ...

    def close(self) -> None: ...


class Broker(Protocol):
    """A store of jobs."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...

    def check_queue(self, queue: Queue) -> None:
        """Raise `ConfigurationError` unless it can keep the jobs of such a queue.

        Looks at the settings alone, ``broker_options`` above all, and asks nobody.
        """
        ...

    async def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """Store jobs in their order, all or none.

        Jobs that are due become PENDING, others SCHEDULED. An id that is unfinished in the store
        is left as it is. With ``within`` the jobs are part of the caller's transaction.

        A job whose unique key is held by another is not stored; a key is held by one job at most,
        however many push it, also in one call. Returns the ids of those, each with the id of the
        one that has the key. With ``replace`` that one, if it waits, has taken over arguments,
        priority and time.
        :raises DuplicateJob: a key was held that must not be; nothing of the call was stored, and
            the caller's transaction goes on.
        """
        ...

    async def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """The same for any number of jobs, in chunks of `CHUNK`, the last one shorter.

        A chunk is taken while the one before it is being stored, and no more than a few are kept.
        If the iterator raises, nothing is stored. After `DuplicateJob` a transaction of the
        caller's may hold chunks that came before.
        """
        ...

    async def claim(
        self, queue: str, *, worker_id: UUID, limit: int, thorough: bool = False
    ) -> Sequence[Claim]:
        """Take up to ``limit`` pending jobs, higher priority first, then in order of position.

        All claims of one call share a new lease. A paused queue and a worker that is not
        registered get none. A broker may remember how far it has looked; ``thorough`` makes it
        look from the front. Jobs of a call whose answer was lost are given by a later call.
        """
        ...

    async def settle(
        self, settlements: Sequence[Settlement], *, inside: Sequence[TransactionHook] = ()
    ) -> frozenset[UUID]:
        """End attempts; returns the ids of the stale ones, whose lease is gone.

        A settlement that goes back becomes CANCELLED instead if the job was asked to stop.
        A batch that was settled before (its answer was lost) is accepted again. One that
        cannot be stored fails alone: the rest of the batch is settled.
        ``inside`` is done in the same transaction, each in a savepoint of its own and within
        seconds: what raises is undone alone, and logged. Without `Capability.SETTLING` a broker
        leaves it out.
        """
        ...

    async def update_meta(self, notes: Sequence[Note]) -> frozenset[UUID]:
        """Put keys over the meta of running jobs; returns the ids of those whose lease is gone.

        At most one note for a job. One that cannot be stored fails alone, and is logged.
        """
        ...

    async def promote(self, limit: int) -> Promotion:
        """Make up to ``limit`` due SCHEDULED jobs PENDING, the earliest first."""
        ...

    async def cancel(self, ids: Sequence[UUID]) -> Mapping[UUID, Cancellation]:
        """Cancel waiting jobs and ask for the end of running ones."""
        ...

    async def run_now(self, ids: Sequence[UUID]) -> frozenset[UUID]:
        """Make SCHEDULED jobs PENDING before they are due; gives the ids of those that were."""
        ...

    async def stop_requests(self, worker_id: UUID) -> Sequence[UUID]:
        """The running jobs of a worker that were asked to stop, in any order."""
        ...

    async def running(self, worker_id: UUID, *, besides: Collection[UUID]) -> Mapping[UUID, UUID]:
        """Up to `MOST_RUNNING` jobs that a worker runs as far as the store knows, with their
        leases, but for those given. Claims whose answer was lost, and which a later one may give,
        are left out."""
        ...

    async def get(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        """Jobs by id, finished ones too as long as they are kept."""
        ...

    async def watch(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        """`get`, and have a notice of `Kind.FINISHED` sent when one of these jobs finishes.

        Ids that are not there are expected too. The notice of a job that finishes in this very
        moment may be missing: look again a little later.
        """
        ...

    async def unwatch(self, ids: Sequence[UUID]) -> None:
        """Expect these jobs no longer."""
        ...

    async def position(self, id: UUID) -> QueuePosition | None:
        """Where a job stands; None if it is finished or not there."""
        ...

    async def find(self, wanted: JobFilter) -> Sequence[QueuedJob]: ...

    async def counts(self) -> Mapping[str, QueueCounts]:
        """Live jobs by queue; queues without jobs are left out."""
        ...

    async def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        """Store a queue if there is none of its name; with ``upsert`` store its settings anyway.

        Returns the queue as it stands. Pausing is never changed for a queue that exists.
        """
        ...

    async def queues(self) -> Sequence[Queue]:
        """All queues by name. A row that cannot be used is repaired with defaults, and logged."""
        ...

    async def pause(self, queue: str, *, resume_at: datetime | None = None) -> bool:
        """Pause a queue; False if there is none of this name."""
        ...

    async def resume(self, queue: str) -> bool: ...

    async def delete_queue(self, queue: str) -> bool:
        """Forget a queue. Its jobs stay, and run once it is declared again."""
        ...

    async def register(self, worker: WorkerRecord) -> None:
        """Add a worker. It lives from now on, as long as it beats."""
        ...

    async def announce(
        self, worker_id: UUID, queues: Sequence[str], broken: Mapping[str, str]
    ) -> bool:
        """Say which queues a worker serves now, and why it cannot serve others.

        False: it was declared dead.
        """
        ...

    async def unregister(self, worker_id: UUID) -> None: ...

    async def workers(self) -> Sequence[WorkerRecord]: ...

    async def orphans(self, *, silent_s: float, limit: int) -> Sequence[Claim]:
        """Claims whose worker is gone, in any order.

        Forgets the workers that have not beaten for ``silent_s`` seconds by the store's clock
        before it looks: they can neither beat nor claim any more.
        """
        ...

    def heartbeat(self, worker_id: UUID) -> Heartbeat: ...

    async def subscribe(self, topic: Topic = Topic.WORK) -> Subscription: ...

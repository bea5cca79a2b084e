"""The contract of a broker, the store of jobs.

Only brokers access the tables. Every call is safe to repeat: after `BrokerUnavailable` its outcome
is unknown, and the caller repeats it. The suite in ``chancy.testing.conformance`` checks every
implementation against the docstrings of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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


def never(func: str) -> bool:
    """Know no function: claim no job that was set aside."""
    return False


class Heartbeat(Protocol):
    """A worker's heartbeat: blocking, with its own connection, called from a thread."""

    def beat(self, blocked_s: float = 0.0) -> bool:
        """Send a heartbeat. False: the worker was declared dead, and must take a new id.

        :param blocked_s: seconds for which the worker's event loop has been blocked.
        """
        ...

    def close(self) -> None: ...


class Claims(Protocol):
    """A source of claims."""

    async def claim(
        self,
        queue: str,
        *,
        worker_id: UUID,
        limit: int,
        thorough: bool = False,
        knows: Callable[[str], bool] = never,
    ) -> Sequence[Claim]:
        """Take up to ``limit`` pending jobs, higher priority first, then in order of position.

        All claims of one call share a new lease. A paused queue or an unregistered worker yields
        none. A broker may remember its scan position; ``thorough`` makes it scan from the front. If
        the response of a call is lost, a later call returns its jobs.

        Jobs that were set aside (see `Broker.settle`) are claimed only if ``knows`` returns true
        for their function, and at the latest by the second thorough call. It is called once for
        each such function in turn, at most `MOST_SET_ASIDE` functions in a call.
        """
        ...


class Broker(Claims, Protocol):
    """A store of jobs."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...

    def check_queue(self, queue: Queue) -> None:
        """Raise `ConfigurationError` unless the broker can store the jobs of such a queue.

        Checks the settings only, mainly ``broker_options``; sends nothing to the store.
        """
        ...

    async def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """Store jobs in order, all or none.

        Jobs that are due become PENDING, others SCHEDULED. An unfinished job with the same id is
        left as it is. With ``within``, the jobs are part of the caller's transaction.

        A job is not stored if another job holds its unique key. At most one job holds a key, even
        within one call or if many processes push at the same time. Returns the ids of the jobs
        that were not stored, each with the id of the job that holds its key. With ``replace``, that
        job takes over arguments, priority and due time if it waits.

        :raises DuplicateJob: a key is held, and the rule of the job is ``raise``. Nothing of the
            call was stored, and the caller's transaction remains usable.
        """
        ...

    async def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """`push` for any number of jobs, in chunks as `chancy.broker.sizes.cut` makes them.

        The next chunk is read while the previous one is being stored, and only a few are held in
        memory. If the iterator raises, nothing is stored. After `DuplicateJob`, the caller's
        transaction may contain earlier chunks.
        """
        ...

    async def settle(
        self, settlements: Sequence[Settlement], *, inside: Sequence[TransactionHook] = ()
    ) -> frozenset[UUID]:
        """Settle attempts; returns the ids of the stale ones, whose lease is gone.

        A job that was asked to stop becomes CANCELLED instead of being released. A batch that was
        already settled (its response was lost) is accepted again. A settlement that cannot be
        stored fails alone: the rest of the batch is settled. A settlement as HELD whose meta has
        the key `SET_ASIDE` sets the job aside for workers that know its function, and notifies
        workers with `NoticeKind.REWIND`.

        ``inside`` hooks run in the same transaction, each in its own savepoint and with a timeout
        of seconds. A hook that raises is rolled back alone, and logged. A broker without
        `Capability.SETTLING` ignores them.
        """
        ...

    async def update_meta(self, notes: Sequence[Note]) -> frozenset[UUID]:
        """Merge keys into the meta of running jobs; returns the ids whose lease is gone.

        At most one update for each job. An update that cannot be stored fails alone: it is logged,
        and its `Note.on_refused` is called.

        :raises RowsLocked: other transactions have locked some rows; the others are written.
        """
        ...

    async def promote(self, limit: int, *, worker_id: UUID | None = None) -> Promotion:
        """Make up to ``limit`` due SCHEDULED jobs PENDING, the earliest first.

        A broker with `Capability.EXPIRY` also cancels up to ``limit`` expired jobs, with the reason
        as their last error. Until then no claim returns them.

        :param worker_id: the worker that calls; sets `Promotion.ahead`.
        """
        ...

    async def cancel(self, ids: Sequence[UUID]) -> Mapping[UUID, Cancellation]:
        """Cancel waiting jobs, and ask running ones to stop."""
        ...

    async def run_now(self, ids: Sequence[UUID]) -> frozenset[UUID]:
        """Make SCHEDULED jobs PENDING before they are due; returns the ids that were SCHEDULED."""
        ...

    async def stop_requests(self, worker_id: UUID) -> Sequence[UUID]:
        """Return the running jobs of a worker that were asked to stop, in any order; also the id of
        the worker itself if it was, see `StoppingWorkers`."""
        ...

    async def running(self, worker_id: UUID, *, besides: Collection[UUID]) -> Mapping[UUID, UUID]:
        """Return up to `MOST_RUNNING` jobs that the store has as running on a worker, with their
        leases, except for ``besides``. Claims whose response was lost, which a later call may
        return, are left out."""
        ...

    async def get(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        """Return jobs by id, including finished ones while they are kept."""
        ...

    async def watch(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        """`get`, and send a `NoticeKind.FINISHED` notification when one of these jobs finishes.

        Unknown ids are watched too. The notification of a job that finishes during this call may
        be missing: poll once a little later.
        """
        ...

    async def unwatch(self, ids: Sequence[UUID]) -> None:
        """Stop watching these jobs."""
        ...

    async def position(self, id: UUID) -> QueuePosition | None:
        """Return the position of a job; None if it is finished or does not exist."""
        ...

    async def find(self, wanted: JobFilter) -> Sequence[QueuedJob]: ...

    async def counts(self) -> Mapping[str, QueueCounts]:
        """Return the counts of live jobs by queue; queues without jobs are left out."""
        ...

    async def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        """Store a queue unless one of its name exists; with ``upsert``, overwrite its settings.

        Returns the queue as stored. Whether an existing queue is paused is never changed.
        """
        ...

    async def queues(self, name: str | None = None) -> Sequence[Queue]:
        """Return all queues by name, or only the queue of this name, if it exists.

        Defaults replace invalid values of a row, which is logged.
        """
        ...

    async def pause(self, queue: str, *, resume_at: datetime | None = None) -> bool:
        """Pause a queue; False if it does not exist."""
        ...

    async def resume(self, queue: str) -> bool: ...

    async def delete_queue(self, queue: str) -> bool:
        """Remove a queue. Its jobs remain, and run once it is declared again."""
        ...

    async def register(self, worker: WorkerRecord) -> None:
        """Add a worker. It counts as alive from now on, while it sends heartbeats."""
        ...

    async def announce(
        self,
        worker_id: UUID,
        queues: Sequence[str],
        broken: Mapping[str, str],
        unknown: Sequence[str] = (),
    ) -> bool:
        """Store which queues a worker serves, why it cannot serve others, and the functions of
        jobs in its queues that it does not know.

        False: the worker was declared dead.
        """
        ...

    async def unregister(self, worker_id: UUID) -> None: ...

    async def workers(self, *, heartbeat_age_s: float = 0.0) -> Sequence[WorkerRecord]:
        """Return the registered workers, in any order.

        :param heartbeat_age_s: only workers without a heartbeat for this many seconds, by the
            store's clock; 0: all workers.
        """
        ...

    async def orphans(self, *, heartbeat_age_s: float, limit: int) -> Sequence[Claim]:
        """Return up to ``limit`` claims whose worker is gone, in any order. There may be more
        unless it returns none.

        First removes the workers without a heartbeat for ``heartbeat_age_s`` seconds by the store's
        clock: these can no longer send heartbeats or claim.
        """
        ...

    async def beat(self, worker_id: UUID, blocked_s: float = 0.0) -> bool:
        """Send a heartbeat from the event loop; as `Heartbeat.beat`."""
        ...

    def heartbeat(self, worker_id: UUID) -> Heartbeat:
        """Return the heartbeat for a thread, which sends those that the event loop cannot."""
        ...

    async def subscribe(self, topic: Topic = Topic.WORK) -> Subscription: ...

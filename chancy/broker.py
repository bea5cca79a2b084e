# over 300 lines: all that a store must do, on one page
"""What a store of jobs must do.

A broker is the only part that knows tables. Every call may be repeated: after
`BrokerUnavailable` its outcome is unknown, and the caller makes it again.
``chancy.testing.conformance`` holds every implementation to the words of this page.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from chancy.attempt import Claim, Note, Settlement
from chancy.givens import number, one, several
from chancy.job import QueuedJob
from chancy.notice import Subscription, Topic
from chancy.queue import Queue
from chancy.settling import Inside
from chancy.states import State
from chancy.unique import UniqueKey

#: Jobs of one chunk of a bulk push.
CHUNK = 1_000
#: Jobs of one answer of `Broker.running`.
MOST_RUNNING = 1_000


class Capability(StrEnum):
    """What a broker may or may not offer."""

    #: `push` takes a connection of the caller's, and is part of its transaction.
    TRANSACTIONAL_PUSH = "transactional push"
    #: Notices reach other processes.
    NOTICES = "notices"
    #: `settle` lets plugins write in its transaction.
    SETTLING = "settling in a transaction"
    #: It is a `SqlStore`.
    SQL = "SQL statements"
    #: `push` keeps to the unique keys of jobs.
    UNIQUE = "unique jobs"
    #: `push` within a transaction of the caller's raises at once where a key is held.
    UNIQUE_WITHIN = "raising within a transaction that a key is held"


class PreparedJob(NamedTuple):
    """A job that passed every check, its values encoded. What `push` stores.

    ``delay_s`` counts from the push by the store's clock; with ``run_at`` it is None.
    """

    id: UUID
    queue: str
    priority: int
    func: str
    arguments: str
    run_at: datetime | None
    delay_s: float | None
    max_attempts: int
    meta: str | None
    limits: str | None = None
    unique: UniqueKey | None = None


class Promotion(NamedTuple):
    """What a promotion did."""

    #: Jobs that became pending.
    promoted: int
    #: Seconds until the next scheduled job is due, by the store's clock; None if there is none.
    next_due_s: float | None


class Cancellation(StrEnum):
    """What became of a request to cancel."""

    #: The job waited, and is cancelled now.
    CANCELLED = "cancelled"
    #: The job runs: its worker has been asked to stop it.
    ASKED = "asked"
    #: The job had finished before.
    FINISHED = "finished"
    #: There is no such job.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A worker as others see it. Times are aware, in UTC, by the store's clock."""

    id: UUID
    host: str
    pid: int
    tags: frozenset[str]
    queues: tuple[str, ...]
    version: str
    started_at: datetime | None = None
    beat_at: datetime | None = None
    #: Seconds since the last beat, by the store's clock.
    silent_s: float = 0.0
    #: Queues that it should serve and cannot, and why.
    broken: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to list: every given condition must hold. Newest first, by id.

    :param before: only jobs with a smaller id than this: the last of the page before.
    :param limit: 1 to 1,000 rows.
    """

    states: frozenset[State] = frozenset()
    queue: str | None = None
    func: str | None = None
    before: UUID | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        allowed = ", ".join(f"State.{state.name}" for state in State)
        states = several(self.states, State, "states", f"use any of {allowed}")
        object.__setattr__(self, "states", frozenset(states))
        for name in ("queue", "func"):
            if (given := getattr(self, name)) is not None:
                one(given, str, name, "give its name, which is a text")
        if self.before is not None:
            one(
                self.before,
                UUID,
                "before",
                "give the id of a job, UUID(text)",
            )
        number(self.limit, "limit")


class QueueCounts(NamedTuple):
    """Live jobs of one queue by state; each count stops at 100,001."""

    pending: int = 0
    running: int = 0
    scheduled: int = 0


class Holder(NamedTuple):
    """A running job, which takes one of the slots of its queue."""

    id: UUID
    func: str
    worker_id: UUID | None
    #: Seconds since it was claimed.
    claimed_s: float


class Place(NamedTuple):
    """Where an unfinished job stands. Seconds are by the store's clock."""

    #: Pending jobs of its queue that go before it, while it is pending; stops at 10,001.
    ahead: int
    #: Running jobs of its queue; stops at 10,001.
    running: int
    #: Seconds until it is due; negative if it has been due, 0 if it was at once.
    due_s: float
    #: Seconds since it was claimed, 0 if it never was.
    claimed_s: float
    #: Seconds since it could have run.
    waited_s: float
    #: Up to 5 of those running jobs, the longest running first, while it is pending. A broker may
    #: leave them out.
    holders: Sequence[Holder] = ()


class Pulse(Protocol):
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
        self, settlements: Sequence[Settlement], *, inside: Sequence[Inside] = ()
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

    async def note(self, notes: Sequence[Note]) -> frozenset[UUID]:
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

    async def hurry(self, ids: Sequence[UUID]) -> frozenset[UUID]:
        """Make SCHEDULED jobs PENDING before they are due; gives the ids of those that were."""
        ...

    async def asked_to_stop(self, worker_id: UUID) -> Sequence[UUID]:
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

    async def expect(self, ids: Sequence[UUID]) -> Mapping[UUID, QueuedJob]:
        """`get`, and have a notice of `Kind.FINISHED` sent when one of these jobs finishes.

        Ids that are not there are expected too. The notice of a job that finishes in this very
        moment may be missing: look again a little later.
        """
        ...

    async def forget(self, ids: Sequence[UUID]) -> None:
        """Expect these jobs no longer."""
        ...

    async def place(self, id: UUID) -> Place | None:
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

    def pulse(self, worker_id: UUID) -> Pulse: ...

    async def subscribe(self, topic: Topic = Topic.WORK) -> Subscription: ...


@runtime_checkable
class BlockingPush(Protocol):
    """A broker of a plugin that threads without an event loop push to themselves.

    What is made for the ``sync_…`` calls is used by these two calls alone, from any thread. Pushes
    to a broker that is none go through a loop in a thread beside it, and ``within`` a transaction
    only to a `BlockingWithin`.
    """

    def push_blocking(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """`Broker.push`; connects when it is called first."""
        ...

    def close_blocking(self) -> None: ...


@runtime_checkable
class BlockingWithin(Protocol):
    """A broker of a plugin that threads push to within transactions of theirs, and no other way."""

    def push_within(self, jobs: Sequence[PreparedJob], *, within: object) -> Mapping[UUID, UUID]:
        """`Broker.push`, from any thread; needs no connection of its own."""
        ...


class Adopted(NamedTuple):
    """What was done to take over jobs of a queue."""

    jobs: int
    #: Whether there may be more to take over now.
    more: bool
    #: Whether there are some that are left where they are.
    rest: bool


class Adoption(Protocol):
    """Takes over jobs of queues from the control broker; raises `BrokerError`."""

    async def __call__(self, queue: str) -> Adopted:
        """Take over up to a batch of the pending jobs of a queue."""
        ...

    async def claim(self, queue: str, *, worker_id: UUID, limit: int) -> Sequence[Claim]:
        """`Broker.claim` of what is left with the control broker.

        Never of what is being taken over: that may be in the other broker already.
        """
        ...


@runtime_checkable
class Adopting(Protocol):
    """A broker of a plugin that takes over jobs of its queues which the control broker has.

    Those were pushed by SQL, by a plugin that writes rows, by somebody who does not know where the
    queue lives, or before it moved there. Each worker of a queue does it, when it hears of such
    jobs and by polling. What is left, and what a broker that is none has there, is run from where
    it is.
    """

    def adoption(self, control: Broker) -> Adoption | None:
        """What takes them over; None: nothing can with this control broker."""
        ...


@runtime_checkable
class SqlStore(Protocol):
    """A broker that keeps its jobs in Postgres: plugins run statements of their own on it."""

    @property
    def schema(self) -> str:
        """The schema of the tables, checked but not quoted."""
        ...

    async def fetch(self, sql: str, *params: object) -> Sequence[Sequence[Any]]:
        """Run one statement with ``$1`` placeholders on a session of the pool.

        :raises BrokerError: the server is away, or refuses the statement.
        """
        ...


@runtime_checkable
class SqlClaims(SqlStore, Protocol):
    """A store from which a plugin claims by a statement of its own."""

    async def claim_by(
        self, statement: str, queue: str, *, worker_id: UUID, limit: int
    ) -> Sequence[Claim]:
        """`Broker.claim` by a statement; a claim whose answer was lost is found again, too.

        :param statement: takes the worker, the lease, the queue and the limit, in this order, and
            gives the id, priority, position, function, arguments, attempt, number of attempts,
            crashes, meta and limits of what it has claimed.
        """
        ...

"""The values that brokers take and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from chancy.checks import check_instance, check_instances, check_number
from chancy.job.unique import UniqueKey
from chancy.states import State

#: The size of a chunk of a bulk push, in jobs.
CHUNK = 1_000
#: The most functions of jobs that were set aside that one call of `Broker.claim` considers.
MOST_SET_ASIDE = 500
#: The most jobs that one call of `Broker.running` returns.
MOST_RUNNING = 1_000


class Capability(StrEnum):
    """An optional feature of a broker."""

    #: Notifications reach other processes.
    NOTICES = "notices"
    #: Plugins may write in the transaction of `settle`. Of use to the control broker alone.
    SETTLING = "settling in a transaction"
    #: It is a `SqlStore`.
    SQL = "SQL statements"
    #: `push` enforces the unique keys of jobs.
    UNIQUE = "unique jobs"
    #: Jobs that have not started by a time are cancelled.
    EXPIRY = "jobs that expire"
    #: Jobs are held until they are released; it is a `Releasing`.
    HOLD = "jobs on hold"
    #: `claim` enforces the rules of queues that `check_queue` accepts, or a plugin does by SQL.
    RULES = "rules of queues"
    #: `push` within a transaction of the caller raises at once if a key is held.
    UNIQUE_WITHIN = "raising within a transaction that a key is held"


class PreparedJob(NamedTuple):
    """A checked and encoded job, as stored by `push`.

    ``delay_s`` counts from the push by the store's clock; with ``run_at`` it is None. So does
    ``expires`` if it is a number of seconds.
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
    expires: datetime | float | None = None


class Promotion(NamedTuple):
    """The result of a promotion."""

    #: Jobs that became pending.
    promoted: int
    #: Seconds until the next scheduled job is due, by the store's clock; None if there is none.
    next_due_s: float | None
    #: How many live workers promote before the caller, at most 20: the more, the more rarely it may
    #: promote. A broker for which promotion costs little may leave it 0.
    ahead: int = 0


class Cancellation(StrEnum):
    """The result of a request to cancel a job."""

    #: The job was waiting, and is now cancelled.
    CANCELLED = "cancelled"
    #: The job is running: its worker has been asked to stop it.
    ASKED = "asked"
    #: The job had already finished.
    FINISHED = "finished"
    #: There is no such job.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """A registered worker. Datetimes are aware, in UTC, by the store's clock."""

    id: UUID
    host: str
    pid: int
    tags: frozenset[str]
    queues: tuple[str, ...]
    version: str
    started_at: datetime | None = None
    beat_at: datetime | None = None
    #: Seconds since the last heartbeat, by the store's clock.
    heartbeat_age_s: float = 0.0
    #: Queues that the worker should serve but cannot, and why.
    broken: Mapping[str, str] = field(default_factory=dict[str, str])
    #: Seconds for which its event loop had been blocked at the last heartbeat. Only the control
    #: broker knows.
    blocked_s: float = 0.0
    #: Functions of jobs in its queues that the worker does not know.
    unknown: tuple[str, ...] = ()
    #: Seconds by which its clock was ahead of the store's at the last heartbeat. Only the control
    #: broker knows.
    ahead_s: float = 0.0
    #: Seconds without a heartbeat after which other workers count it as dead.
    heartbeat_timeout_s: float = 15.0
    #: Resident memory of its own process at the last heartbeat in bytes, without that of executor
    #: processes. None if it is not known: only Postgres keeps it, of workers on Linux.
    memory_bytes: int | None = None
    #: When it was asked to shut down. Only Postgres keeps it.
    stop_asked_at: datetime | None = None

    @property
    def dead(self) -> bool:
        """Whether it has sent no heartbeat for its heartbeat timeout."""
        return self.heartbeat_age_s > self.heartbeat_timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """A filter for listing jobs; all conditions must hold. Newest first, by id.

    :param before: only jobs with a smaller id: the last id of the previous page.
    :param limit: 1 to 1,000 rows.
    """

    states: frozenset[State] = frozenset()
    queue: str | None = None
    func: str | None = None
    before: UUID | None = None
    limit: int = 50

    def __post_init__(self) -> None:
        allowed = ", ".join(f"State.{state.name}" for state in State)
        states = check_instances(self.states, State, "states", f"use any of {allowed}")
        object.__setattr__(self, "states", frozenset(states))
        for name in ("queue", "func"):
            if (given := getattr(self, name)) is not None:
                check_instance(given, str, name, "pass its name as a string")
        if self.before is not None:
            check_instance(
                self.before,
                UUID,
                "before",
                "pass the id of a job, UUID(...)",
            )
        check_number(self.limit, "limit")


#: Jobs that finished within this time are not deleted: a caller may be waiting for them, and a
#: settlement whose response was lost is looked up among them.
YOUNG = timedelta(minutes=1)
#: The same where failed jobs are among them: a sweep that looks for failed jobs, such as that of
#: dead letters, runs every 30 s, and without a leader every 6 minutes.
YOUNG_FAILED = timedelta(minutes=10)
#: Where counts of jobs stop.
MOST_COUNTED = 100_001


class QueueCounts(NamedTuple):
    """Counts of the unfinished jobs of one queue by state; each stops at 100,001.

    In Postgres, running, scheduled and held jobs are counted up to 100,001 of all queues together:
    once a state has as many, the others of that state may be missing.
    """

    pending: int = 0
    running: int = 0
    scheduled: int = 0
    #: Jobs on hold, those that were set aside for workers that know their function, and those that
    #: rules hold.
    held: int = 0


class Holder(NamedTuple):
    """A running job, which occupies one of the slots of its queue."""

    id: UUID
    func: str
    worker_id: UUID | None
    #: Seconds since it was claimed.
    claimed_s: float


class QueuePosition(NamedTuple):
    """The position of an unfinished job. Seconds are by the store's clock."""

    #: Pending jobs of its queue ahead of it, while it is pending; stops at 10,001.
    ahead: int
    #: Running jobs of its queue; stops at 10,001.
    running: int
    #: Seconds until it is due; negative if it is overdue, 0 if it was due at once.
    due_s: float
    #: Seconds since it was claimed, 0 if it never was.
    claimed_s: float
    #: Seconds since it became ready to run.
    waited_s: float
    #: Up to 5 of the running jobs, the longest running first, while this job is pending. Optional
    #: for a broker.
    holders: Sequence[Holder] = ()

"""The values that brokers take and return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from chancy.checks import check_instance, check_instances, check_number
from chancy.job.unique import UniqueKey
from chancy.states import State

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
        states = check_instances(self.states, State, "states", f"use any of {allowed}")
        object.__setattr__(self, "states", frozenset(states))
        for name in ("queue", "func"):
            if (given := getattr(self, name)) is not None:
                check_instance(given, str, name, "give its name, which is a text")
        if self.before is not None:
            check_instance(
                self.before,
                UUID,
                "before",
                "give the id of a job, UUID(text)",
            )
        check_number(self.limit, "limit")


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


class QueuePosition(NamedTuple):
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

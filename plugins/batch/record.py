"""Snapshots of batches, read from the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from chancy.plugin.tables import facts, from_row
from chancy.plugin.tracking.groups import GroupFilter, GroupState
from chancy.states import LabelledEnum


class BatchState(GroupState):
    """The state of a batch."""

    #: Some of its jobs have not ended, or it is open.
    RUNNING = 1
    #: All of its jobs have succeeded.
    SUCCEEDED = 4
    #: All of its jobs have ended, and some have failed.
    FAILED = 5
    #: All of its jobs have ended, and some were cancelled; none failed, unless it was cancelled.
    #: Also a batch that was cancelled before it had jobs.
    CANCELLED = 6


class On(LabelledEnum):
    """When a batch pushes a callback."""

    #: All of its jobs have succeeded.
    SUCCESS = 1
    #: The first of its jobs has failed for good.
    FAILURE = 2
    #: All of its jobs have ended, whatever their outcome.
    FINISH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """The number of jobs of a batch by outcome. A job counts once, however often it was retried.

    :param pending: jobs that have not ended: they wait or run.
    """

    pending: int
    succeeded: int
    failed: int
    cancelled: int

    @property
    def total(self) -> int:
        return self.pending + self.succeeded + self.failed + self.cancelled

    @property
    def fraction(self) -> float:
        """The part of the jobs that have ended, from 0 to 1."""
        return 1.0 - self.pending / self.total if self.total else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A batch. Times are aware, in UTC.

    :param open: whether jobs can be added from outside; the batch does not end before it is closed.
    :param stop_asked_at: when it was cancelled.
    """

    id: UUID
    name: str
    state: BatchState
    open: bool
    progress: BatchProgress
    pushed_at: datetime
    stop_asked_at: datetime | None
    finished_at: datetime | None


def batch_facts(record: BatchRecord) -> dict[str, Any]:
    """A batch as JSON, with its counts."""
    found, progress = facts(record), record.progress
    del found["progress"]
    return found | {"total": progress.total} | facts(progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackRecord:
    """A callback of a batch.

    :param job_id: the id of the callback's job, also before it is pushed.
    :param pushed_at: None if it was not pushed yet.
    """

    on: On
    job_id: UUID
    func: str
    pushed_at: datetime | None


class BatchFilter(GroupFilter[BatchState]):
    """A filter for batches."""


def batch(row: Sequence[Any]) -> BatchRecord:
    """A row of ``sql/find.sql``."""
    progress = from_row(BatchProgress, row[7:])
    return from_row(BatchRecord, (*row[:4], progress, *row[4:7]), state=BatchState)

"""Workflows and steps as the database has them at one moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

from chancy.job.definition import QueuedJob
from chancy.plugins.workflow.step import OnFailure
from chancy.states import State


class WorkflowState(IntEnum):
    """Where a workflow is."""

    RUNNING = 1
    #: A step has failed that is to be compensated: what was done is being undone.
    COMPENSATING = 2
    #: A step has failed, and others run yet: nothing else begins.
    FAILING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    #: What was done is undone.
    COMPENSATED = 7

    def __str__(self) -> str:
        return self.label

    @property
    def label(self) -> str:
        return self.name.lower()

    @property
    def final(self) -> bool:
        """Whether nothing of it runs by itself any more; it may be retried."""
        return self >= WorkflowState.SUCCEEDED


class StepState(StrEnum):
    """Where a step is."""

    #: For other steps.
    WAITING = "waiting"
    #: For its signal.
    AWAITING_SIGNAL = "awaiting signal"
    #: As its job is.
    PENDING = "pending"
    SCHEDULED = "scheduled"
    HELD = "held"
    RUNNING = "running"
    #: Its job has ended, or is gone, and that is not told yet: the sweep does.
    ENDING = "ending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: It has failed, and counts as done.
    IGNORED = "ignored"


_ENDED = {
    4: StepState.SUCCEEDED,
    5: StepState.FAILED,
    6: StepState.CANCELLED,
    7: StepState.IGNORED,
}
NOTHING: Mapping[UUID, QueuedJob] = MappingProxyType({})
_LIVE = {
    State.PENDING: StepState.PENDING,
    State.RUNNING: StepState.RUNNING,
    State.SCHEDULED: StepState.SCHEDULED,
    State.HELD: StepState.HELD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRecord:
    """A workflow. Times are aware, in UTC.

    :param steps: how many it has, those that undo others included.
    :param error: why it has not succeeded.
    """

    id: UUID
    name: str
    state: WorkflowState
    steps: int
    error: str | None
    pushed_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step. Times are aware, in UTC.

    :param run: counts from 1, up by one when it is retried.
    :param next: the steps that it lets go on.
    :param undoes: the step that it undoes.
    :param added_by: the step that added it while the workflow ran.
    :param func: None: it waits for a signal.
    :param took_s: seconds for which its last attempt ran.
    :param started_at: when that began; None: it did not, or that is not known.
    :param attempt: which attempt runs, or ran last before it waits for the next; None otherwise.
    :param result: what it gave, as JSON has it.
    :param error: type and message of what it failed with.
    """

    name: str
    state: StepState
    run: int
    next: tuple[str, ...]
    on_failure: OnFailure
    undoes: str | None
    added_by: str | None
    job_id: UUID | None
    queue: str | None
    func: str | None
    started_at: datetime | None
    finished_at: datetime | None
    took_s: float | None
    attempt: int | None
    result: Any
    error: Mapping[str, str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowProgress:
    """How many steps have ended, of how many; those that only undo others are not counted."""

    total: int
    succeeded: int
    ignored: int
    failed: int
    cancelled: int

    @property
    def fraction(self) -> float:
        """From 0 to 1: what is done and need not be done again."""
        return (self.succeeded + self.ignored) / self.total if self.total else 1.0


def utc(at: datetime | None) -> datetime | None:
    return None if at is None else at.replace(tzinfo=UTC)


def workflow(row: Sequence[Any]) -> WorkflowRecord:
    """A row of ``sql/find.sql``."""
    id, name, state, steps, error, pushed_at, finished_at = row
    return WorkflowRecord(
        id=id,
        name=name,
        state=WorkflowState(state),
        steps=steps,
        error=error,
        pushed_at=pushed_at.replace(tzinfo=UTC),
        finished_at=utc(finished_at),
    )


def step(
    row: Sequence[Any], flow: WorkflowState, there: Mapping[UUID, QueuedJob] = NOTHING
) -> StepRecord:
    """A row of ``sql/show.sql``.

    :param there: the jobs that other brokers keep.
    """
    (
        name, _, state, run, next_, on_failure, undoes, added_by, job_id, queue, func, finished_at,
        took_s, result, error, live, claimed_at, attempt, ready, away,
    ) = row  # fmt: skip
    known = _ENDED.get(state)
    began = None
    if away:
        # On its way there, or there is nobody to ask.
        live = int(State.PENDING)
        if (job := there.get(job_id)) is not None:
            live = None if job.state.final else int(job.state)
            attempt, began = job.attempt, job.claimed_at
            # Its end is there, and not told yet: until then nobody retries it.
            known = known or (StepState.ENDING if job.state.final else None)
    if known is None:
        known = _open(live, func, ready=ready, over=flow)
    began = (began or utc(claimed_at)) if known is StepState.RUNNING else None
    if finished_at is not None and took_s is not None:
        began = datetime.fromtimestamp(finished_at.replace(tzinfo=UTC).timestamp() - took_s, UTC)
    return StepRecord(
        name=name,
        state=known,
        run=run,
        next=tuple(one for one in next_ if one),
        on_failure=OnFailure(on_failure),
        undoes=undoes,
        added_by=added_by,
        job_id=job_id if func is not None else None,
        queue=queue or None,
        func=func,
        started_at=began,
        finished_at=utc(finished_at),
        took_s=took_s,
        attempt=attempt,
        result=None if result is None else json.loads(result),
        error=None if error is None else json.loads(error),
    )


def _open(live: int | None, func: str | None, *, ready: bool, over: WorkflowState) -> StepState:
    """Where a step is that has not ended."""
    if live is not None:
        return _LIVE.get(State(live), StepState.PENDING)
    if over in (WorkflowState.CANCELLED, WorkflowState.COMPENSATED):
        return StepState.CANCELLED
    if not ready or over is not WorkflowState.RUNNING:
        return StepState.WAITING
    return StepState.AWAITING_SIGNAL if func is None else StepState.ENDING

"""Snapshots of workflows and steps, read from the database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from chancy.plugin.tables import utc
from chancy.plugin.tracking.groups import GroupFilter, GroupState
from chancy.plugins.workflow.step import OnFailure
from chancy.states import State


class WorkflowState(GroupState):
    """The state of a workflow."""

    RUNNING = 1
    #: A step with ``on_failure="compensate"`` has failed: completed steps are being undone.
    COMPENSATING = 2
    #: A step has failed, and others have unfinished jobs. These jobs run, and no other step starts.
    FAILING = 3
    SUCCEEDED = 4
    FAILED = 5
    CANCELLED = 6
    #: Completed steps have been undone.
    COMPENSATED = 7


class WorkflowFilter(GroupFilter[WorkflowState]):
    """A filter for workflows."""


class StepState(StrEnum):
    """The state of a step."""

    #: It waits for other steps.
    WAITING = "waiting"
    #: It waits for its signal.
    AWAITING_SIGNAL = "awaiting signal"
    #: The state of its job.
    PENDING = "pending"
    SCHEDULED = "scheduled"
    HELD = "held"
    RUNNING = "running"
    #: Its job has ended, or is gone, which the sweep has yet to report.
    ENDING = "ending"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    #: It has failed, and counts as completed.
    IGNORED = "ignored"


_ENDED = {
    4: StepState.SUCCEEDED,
    5: StepState.FAILED,
    6: StepState.CANCELLED,
    7: StepState.IGNORED,
}
_LIVE = {
    State.PENDING: StepState.PENDING,
    State.RUNNING: StepState.RUNNING,
    State.SCHEDULED: StepState.SCHEDULED,
    State.HELD: StepState.HELD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowRecord:
    """A workflow. Times are aware, in UTC.

    :param steps: the number of its steps, including undo steps.
    :param error: why it did not succeed.
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

    :param run: 1 at first; each retry adds 1.
    :param next: the names of the steps that wait for it.
    :param undoes: the name of the step that it undoes.
    :param added_by: the name of the step that added it while the workflow ran.
    :param func: None if it waits for a signal.
    :param took_s: seconds that its last attempt ran.
    :param started_at: when that attempt started; None if none did, or if it is unknown.
    :param attempt: the number of the running attempt, or of the last one before the next starts;
        None otherwise.
    :param result: its result, as decoded JSON.
    :param error: the type and message of its failure.
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
    """The number of steps by outcome; undo steps are not counted."""

    total: int
    succeeded: int
    ignored: int
    failed: int
    cancelled: int

    @property
    def fraction(self) -> float:
        """The part of the steps that succeeded or were ignored, from 0 to 1."""
        return (self.succeeded + self.ignored) / self.total if self.total else 1.0


def step(row: Sequence[Any], flow: WorkflowState) -> StepRecord:
    """A row of ``sql/show.sql``."""
    (
        name, _, state, run, next_, on_failure, undoes, added_by, job_id, queue, func, finished_at,
        took_s, result, error, live, claimed_at, attempt, ready,
    ) = row  # fmt: skip
    known = _ENDED.get(state)
    if known is None:
        known = _open_state(live, func, ready=ready, flow=flow)
    started = utc(claimed_at) if known is StepState.RUNNING else None
    if finished_at is not None and took_s is not None:
        started = datetime.fromtimestamp(utc(finished_at).timestamp() - took_s, UTC)
    return StepRecord(
        name=name,
        state=known,
        run=run,
        next=tuple(step_ for step_ in next_ if step_),
        on_failure=OnFailure(on_failure),
        undoes=undoes,
        added_by=added_by,
        job_id=job_id if func is not None else None,
        queue=queue or None,
        func=func,
        started_at=started,
        finished_at=utc(finished_at),
        took_s=took_s,
        attempt=attempt,
        result=None if result is None else json.loads(result),
        error=None if error is None else json.loads(error),
    )


def _open_state(
    live: int | None, func: str | None, *, ready: bool, flow: WorkflowState
) -> StepState:
    """The state of a step that has not ended."""
    if live is not None:
        return _LIVE.get(State(live), StepState.PENDING)
    if flow in (WorkflowState.CANCELLED, WorkflowState.COMPENSATED):
        return StepState.CANCELLED
    if not ready or flow is not WorkflowState.RUNNING:
        return StepState.WAITING
    return StepState.AWAITING_SIGNAL if func is None else StepState.ENDING

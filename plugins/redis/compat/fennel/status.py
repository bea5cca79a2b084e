"""The statuses of fennel, and their mapping from job states."""

from __future__ import annotations

from typing import assert_never

from chancy.job.definition import QueuedJob
from chancy.states import State

UNKNOWN = "UNKNOWN"
SENT = "SENT"
EXECUTING = "EXECUTING"
SUCCESS = "SUCCESS"
RETRY = "RETRY"
DEAD = "DEAD"


def status_of(job: QueuedJob | None) -> str:
    """The status of a job.

    A job that failed is `RETRY` until it runs again, also when it is due. A cancelled job, for
    which fennel has no status, is `DEAD`.
    """
    if job is None:
        return UNKNOWN
    match job.state:
        case State.PENDING | State.SCHEDULED | State.HELD:
            return RETRY if job.errors else SENT
        case State.RUNNING:
            return EXECUTING
        case State.SUCCEEDED:
            return SUCCESS
        case State.FAILED | State.CANCELLED:
            return DEAD
        case _:
            assert_never(job.state)

"""The states of fennel, and what they are called here."""

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
    """What fennel calls the state of a job.

    What failed once is `RETRY` until it runs again, also when it is due. What was cancelled,
    which fennel has no word for, is `DEAD`.
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

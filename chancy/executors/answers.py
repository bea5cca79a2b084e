"""What a child answers, as outcomes."""

from __future__ import annotations

import json

from chancy.attempt import (
    Cancelled,
    Failure,
    MemoryExceeded,
    Outcome,
    Raised,
    Returned,
    TimedOut,
)
from chancy.executors.frames import (
    MEMORY,
    RAISED,
    RETURNED,
    RETURNED_NONE,
    STOPPED,
    TIMED_OUT,
    Frame,
)
from chancy.executors.hand_over import Attempt


def outcome_of(frame: Frame, attempt: Attempt) -> Outcome | None:
    """The outcome that a frame gives an attempt; None if it is no answer.

    Raises KeyError, TypeError or ValueError for what no child of ours says.
    """
    kind, _, elapsed_s, body = frame
    if kind == RETURNED:
        return Returned(body.decode(), elapsed_s)
    if kind == RETURNED_NONE:
        return Returned(None, elapsed_s)
    if kind == RAISED:
        return Raised(Failure.from_json(json.loads(body)), elapsed_s)
    if kind == STOPPED:
        return attempt.given or Cancelled(body.decode(), elapsed_s)
    if kind == TIMED_OUT:
        return TimedOut(attempt.limits.time_s or 0.0, elapsed_s)
    if kind == MEMORY:
        return MemoryExceeded(attempt.limits.memory_bytes or 0, elapsed_s)
    return None

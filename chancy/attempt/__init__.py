"""One attempt at a job: its claim, its outcome, the decision, and the settlement."""

from __future__ import annotations

from chancy.attempt.claim import Claim
from chancy.attempt.failure import Failure
from chancy.attempt.outcome import (
    Cancelled,
    Lost,
    MemoryExceeded,
    Outcome,
    Raised,
    Released,
    Returned,
    Snoozed,
    TimedOut,
)
from chancy.attempt.settlement import Settlement

__all__ = [
    "Cancelled",
    "Claim",
    "Failure",
    "Lost",
    "MemoryExceeded",
    "Outcome",
    "Raised",
    "Released",
    "Returned",
    "Settlement",
    "Snoozed",
    "TimedOut",
]

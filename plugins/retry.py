"""Retry: failed attempts are run again, later and later."""

from __future__ import annotations

import random

from chancy.attempt import Claim, MemoryExceeded, Outcome, Raised, Settlement, TimedOut
from chancy.plugin import Plugin
from chancy.states import State

#: Failures that come again however often the job is run.
_HOPELESS = ("chancy.errors.InvalidArguments", "chancy.errors.UnknownFunction")


class Retry(Plugin):
    """Runs a failed job again until its ``max_attempts`` are used up.

    The delay before attempt ``n + 1`` is uniform between half of ``base_s · factor^(n - 1)`` and
    the whole of it, at most ``cap_s``: "equal jitter" (Brooker, "Exponential Backoff And Jitter",
    2015). With the defaults: about 2, 4, 8, 16 … seconds, an hour at most.
    """

    def __init__(self, *, base_s: float = 2.0, factor: float = 2.0, cap_s: float = 3600.0) -> None:
        self.base_s = base_s
        self.factor = factor
        self.cap_s = cap_s

    @classmethod
    def get_identifier(cls) -> str:
        return "chancy.retry"

    def judging(self, claim: Claim, outcome: Outcome, verdict: Settlement) -> Settlement:
        if verdict.state is not State.FAILED or claim.attempt >= claim.max_attempts:
            return verdict
        match outcome:
            case Raised(failure) if not any(failure.is_a(name) for name in _HOPELESS):
                pass
            case TimedOut() | MemoryExceeded():
                pass
            case _:
                return verdict
        return verdict._replace(state=State.SCHEDULED, delay_s=self.delay_s(claim.attempt))

    def delay_s(self, attempt: int) -> float:
        """Seconds to wait after this attempt, counted from 1."""
        ceiling = min(self.cap_s, self.base_s * self.factor ** min(attempt - 1, 64))
        return random.uniform(ceiling / 2, ceiling)

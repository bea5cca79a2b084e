"""A claim on its way through the process executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.executors.process.call import pack
from chancy.job.limits import Limits

if TYPE_CHECKING:
    import asyncio


class AttemptHolder(Protocol):
    """The child that holds an attempt, as far as the executor stops it there."""

    def interrupt(self, attempt: ProcessAttempt, outcome: Outcome, now: float) -> None: ...


class ProcessAttempt:
    """A claim on its way through the executor.

    ``child``: in whose hand it is.
    ``began``: when it was given to a child that had nothing before it to do, or when that was done;
    by the loop's clock.
    ``given``: what it ends as once it was interrupted, unless it has ended by itself before.
    ``kill_at``: when its child is killed unless it has ended, by the loop's clock.
    """

    __slots__ = (
        "began",
        "body",
        "child",
        "claim",
        "future",
        "given",
        "kill_at",
        "limits",
        "message",
        "number",
    )

    def __init__(
        self, number: int, claim: Claim, limits: Limits, future: asyncio.Future[Outcome]
    ) -> None:
        self.message, self.body = pack(number, claim, limits)
        self.number = number
        self.claim = claim
        self.limits = limits
        self.future = future
        self.child: AttemptHolder | None = None
        self.began = 0.0
        self.given: Outcome | None = None
        self.kill_at: float | None = None

    def end(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)

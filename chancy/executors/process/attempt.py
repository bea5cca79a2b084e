"""An attempt of the process executor."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Protocol

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.executors.process.call import pack
from chancy.job.limits import Limits

if TYPE_CHECKING:
    import asyncio

#: Executor processes compare the numbers of their calls, which several executors may give them.
_numbers = itertools.count(1)


class AttemptHolder(Protocol):
    """The executor process that holds an attempt."""

    def interrupt(self, attempt: ProcessAttempt, outcome: Outcome, now: float) -> None: ...


class ProcessAttempt:
    """An attempt that waits for an executor process or is held by one.

    ``child``: the executor process that holds it.
    ``started_at``: when it became the next call of its executor process, or when the import of its
    module ended, by the loop's clock.
    ``import_until``: when that import is given up; None while there is none.
    ``interruption``: the outcome that it was interrupted with; it may still end by itself.
    ``kill_at``: when its executor process is killed unless it has ended, by the loop's clock.
    """

    __slots__ = (
        "body",
        "child",
        "claim",
        "future",
        "import_until",
        "interruption",
        "kill_at",
        "limits",
        "message",
        "number",
        "started_at",
    )

    def __init__(self, claim: Claim, limits: Limits, future: asyncio.Future[Outcome]) -> None:
        self.number = next(_numbers)
        self.message, self.body = pack(self.number, claim, limits)
        self.claim = claim
        self.limits = limits
        self.future = future
        self.child: AttemptHolder | None = None
        self.started_at = 0.0
        self.import_until: float | None = None
        self.interruption: Outcome | None = None
        self.kill_at: float | None = None

    def finish(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)

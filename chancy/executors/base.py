"""What runs claims. An executor sees a claim and returns an outcome; it knows nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.context.host import CompletionRef, Progress
from chancy.errors import JobError

#: Finds the function of a path, or raises `UnknownFunction`.
FindFunction = Callable[[str], Callable[..., Any]]
#: Takes what a running attempt reports. Called in the worker's loop.
Report = Callable[[Claim, Progress], None]
#: Puts keys over the meta of a running job: JSON text. Called in the worker's loop; what is called
#: first is stored first. Raises LeaseLost or BrokerError unless it is stored.
Keep = Callable[[Claim, str], Awaitable[None]]


def no_report(claim: Claim, progress: Progress) -> None:
    """For executors whose jobs report to nobody."""


async def no_keep(claim: Claim, meta: str) -> None:
    """For executors whose jobs have nobody who keeps anything."""
    raise JobError("steps need a worker, which stores what they give")


def no_completing(claim: Claim) -> None:
    """For executors whose jobs nobody settles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCallbacks:
    """What running jobs have to do with others than their executor.

    :param completing: told of a job that is completed in a transaction of its own, if that will be
        committed. In the worker's loop.
    :param completion: what completes them.
    """

    report: Report = no_report
    keep: Keep = no_keep
    completing: Callable[[Claim], None] = no_completing
    completion: CompletionRef | None = None


NO_CALLBACKS = AttemptCallbacks()


class Executor(Protocol):
    """Runs the claims of one queue in one worker. Called from the worker's loop only."""

    @property
    def slots(self) -> int:
        """How many `run` calls may be under way at once. May change while it works."""
        ...

    @property
    def broken(self) -> str | None:
        """Why it can run nothing now, although it goes on trying; None if it can."""
        ...

    async def start(self) -> None:
        """Make ready to run. Called once."""
        ...

    def run(self, claim: Claim) -> Coroutine[Any, Any, Outcome]:
        """Run one attempt to its end: an ``async def``. Never raises, whatever the job does.

        Not a task of its own: it is awaited by one of the worker's consumers, so that a job which
        does not wait costs no switch of tasks.
        """
        ...

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        """Stop an attempt that `run` is awaiting; `run` then returns this outcome.

        `Cancelled` and `TimedOut` let the job clean up first, and `run` returns once its work has
        ended: `current_job().cancelled` is set, a coroutine is cancelled, a function in a child
        gets `Interrupted`; after the grace of the queue the child is killed, the coroutine
        abandoned. A plain function in a thread can only be asked: it ends as this outcome if it
        looked at `cancelled` or raised, otherwise as what it returned. `Released` stops at once,
        and what cannot be stopped is left behind; behind another interrupt it only brings the end
        about, which is that of the first.
        If the work ends first, `run` returns what really happened. Returns whether the work can
        be stopped.
        """
        ...

    async def stop(self) -> None:
        """Let go of threads and processes. No `run` is under way any more."""
        ...

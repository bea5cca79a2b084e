"""The contract of executors: an executor runs a claim and returns an outcome."""

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
#: Called in the worker's loop with the progress of a running attempt.
Report = Callable[[Claim, Progress], None]
#: Merges keys (a JSON string) into the meta of a running job. Called in the worker's loop; writes
#: are stored in the order of the calls. Raises LeaseLost or BrokerError if they are not stored.
StoreMeta = Callable[[Claim, str], Awaitable[None]]


def no_report(claim: Claim, progress: Progress) -> None:
    """Ignore progress, in executors without a worker."""


async def no_store(claim: Claim, meta: str) -> None:
    """Refuse checkpoints, in executors without a worker."""
    raise JobError("checkpoints need a worker, which stores their results")


def no_completing(claim: Claim) -> None:
    """Ignore completions, in executors without a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptCallbacks:
    """Callbacks for what running jobs need from their worker.

    :param report: called with progress.
    :param store: stores checkpoints.
    :param completing: called when a job is about to be completed in a transaction of its own, which
        may still be rolled back. In the worker's loop.
    :param completion: reference to the class that completes such jobs.
    :param plain_errors: whether errors that jobs raise while they are being stopped may be logged;
        otherwise only their types are.
    """

    report: Report = no_report
    store: StoreMeta = no_store
    completing: Callable[[Claim], None] = no_completing
    completion: CompletionRef | None = None
    plain_errors: bool = True


NO_CALLBACKS = AttemptCallbacks()


class Executor(Protocol):
    """Runs the claims of one queue in one worker. Called from the worker's loop only.

    An executor that takes claims before it starts their functions may also have a method
    ``release_waiting(outcome)``, which ends these claims with the outcome: the worker stops, or
    their queue is paused or changed.
    """

    @property
    def slots(self) -> int:
        """Number of `run` calls that may be in progress at once. It may change."""
        ...

    @property
    def broken(self) -> str | None:
        """Why it cannot run jobs now, although it keeps trying; None if it can."""
        ...

    async def start(self) -> None:
        """Get ready to run jobs. Called once."""
        ...

    def run(self, claim: Claim) -> Coroutine[Any, Any, Outcome]:
        """Run one attempt to its end (an ``async def``). Never raises, whatever the job does.

        But if the worker, which has stopped, cancels the task in which it is called, the
        `CancelledError` must pass: the worker then releases the job. An outcome for it would count.

        It is not a task of its own: one of the worker's consumers awaits it, so a job that does not
        wait costs no task switch.
        """
        ...

    def interrupt(self, claim: Claim, outcome: Outcome) -> bool:
        """Stop an attempt that `run` is awaiting; `run` then returns this outcome.

        `Cancelled` and `TimedOut` let the job clean up first, and `run` returns once it has ended:
        `current_job().cancelled` is set, a coroutine is cancelled, a function in an executor
        process gets `Interrupted`. After the grace of the queue the executor process is killed, and
        a coroutine is abandoned. A plain function in a thread can only be asked: it ends as this
        outcome if it read `cancelled` or raised, otherwise as what it returned. `Released` stops at
        once, and leaves behind what cannot be stopped; after an earlier interrupt it only forces
        the end, with the outcome of the earlier one. If the job ends first, `run` returns its
        actual outcome.

        :return: whether the job can be stopped.
        """
        ...

    async def stop(self) -> None:
        """Stop threads and processes. Called when no `run` is in progress."""
        ...


class WrappingExecutor:
    """An executor that runs claims by another one; a subclass changes what that gets or returns."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    @property
    def slots(self) -> int:
        return self._executor.slots

    @property
    def broken(self) -> str | None:
        return self._executor.broken

    async def start(self) -> None:
        await self._executor.start()

    async def stop(self) -> None:
        await self._executor.stop()

    def release_waiting(self, outcome: Outcome) -> None:
        """End the attempts that have not started with this outcome, if the executor supports it."""
        release = getattr(self._executor, "release_waiting", None)
        if release is not None:
            release(outcome)

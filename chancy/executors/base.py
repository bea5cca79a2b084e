"""What runs claims. An executor sees a claim and returns an outcome; it knows nothing else."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from chancy.attempt import Claim, Outcome

#: Finds the function of a path, or raises `UnknownFunction`.
FindFunction = Callable[[str], Callable[..., Any]]


class Executor(Protocol):
    """Runs the claims of one queue in one worker. Called from the worker's loop only."""

    @property
    def slots(self) -> int:
        """How many `run` calls may be under way at once. May change while it works."""
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

        If the work ends first, `run` returns what really happened. Returns whether the work can
        be stopped: a thread cannot, and its `run` then returns at once although the thread goes
        on until its function returns.
        """
        ...

    async def stop(self) -> None:
        """Let go of threads and processes. No `run` is under way any more."""
        ...

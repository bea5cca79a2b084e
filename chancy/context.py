"""What a running job knows of itself: ``current_job()``."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from chancy.attempt import Outcome, storable
from chancy.errors import Interrupted, NoCurrentJob

logger = logging.getLogger("chancy.job")

#: The longest text of a progress report, and of a line that a job logs, in characters.
MAX_TEXT = 1_000
MAX_LINE = 16_000


class Progress(NamedTuple):
    """How far an attempt is: ``fraction`` from 0 to 1."""

    fraction: float
    text: str = ""


class Attempt(Protocol):
    """What of a claim its context shows."""

    @property
    def id(self) -> UUID: ...
    @property
    def queue(self) -> str: ...
    @property
    def func(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def crashes(self) -> int: ...
    @property
    def meta(self) -> str | None: ...


#: Takes what an attempt reports, in the thread that reports it.
Say = Callable[[Attempt, Progress], None]


class JobContext:
    """The attempt that runs here, for the function that it runs.

    Its methods may be called from any thread of the process that the job runs in.

    :param attempt: the claim, or what an executor's child knows of it.
    :param say: takes the progress; called in the thread that reports it.
    :param deadline: when the time limit ends it, by ``time.monotonic()``; None without a limit.
    :param stack: what is closed after the run, by who made the context.
    """

    __slots__ = ("_attempt", "_meta", "_say", "_seen", "_stack", "_why", "deadline", "outcome")

    def __init__(
        self,
        attempt: Attempt,
        say: Say,
        deadline: float | None = None,
        stack: AsyncExitStack | None = None,
    ) -> None:
        self._attempt = attempt
        self._say = say
        self._meta: Mapping[str, Any] | None = None
        self._why: str | None = None
        self._seen = False
        self._stack = stack
        self.deadline = deadline
        #: How the run has ended; None until then. Always None in a child of a process queue.
        self.outcome: Outcome | None = None

    @property
    def id(self) -> UUID:
        """The id of the job."""
        return self._attempt.id

    @property
    def queue(self) -> str:
        return self._attempt.queue

    @property
    def func(self) -> str:
        """The path of the function."""
        return self._attempt.func

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self._attempt.attempt

    @property
    def max_attempts(self) -> int:
        return self._attempt.max_attempts

    @property
    def crashes(self) -> int:
        """How often the process that ran this job has died in the middle of it."""
        return self._attempt.crashes

    @property
    def meta(self) -> Mapping[str, Any]:
        """The meta of the job as it was when this attempt began. Not to be changed."""
        if self._meta is None:
            text = self._attempt.meta
            try:
                stored = json.loads(text) if text else {}
            except (ValueError, RecursionError):
                stored = {}
            self._meta = stored if isinstance(stored, dict) else {}
        return self._meta

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time limit, 0 when it has passed; None without a limit."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether this attempt is to end: somebody cancelled it, its time is up, or its lease is
        lost. A job that sees it should clean up and return."""
        if self._why is None:
            return False
        self._seen = True
        return True

    @property
    def why_cancelled(self) -> str | None:
        """Why it is to end; None if it is not."""
        return self._why if self.cancelled else None

    def check(self) -> None:
        """Raise `Interrupted` if this attempt is to end."""
        if self.cancelled:
            raise Interrupted(self._why or "")

    @property
    def stack(self) -> AsyncExitStack:
        """Closed after the run, in the worker's loop, last in first out: for what `around` hooks
        and the jobs they surround want to have closed then, whatever the outcome.

        :raises NoCurrentJob: nobody would close it: no plugin of the worker has an `around` hook,
            or this is a child of a process queue, where the worker's hooks cannot be seen.
        """
        if self._stack is None:
            raise NoCurrentJob(
                "this job has no stack: there is one where the job shares its process with an "
                "`around` hook; use `with` or an ExitStack in the function"
            )
        return self._stack

    def progress(self, fraction: float, text: str = "") -> None:
        """Say how far the job is; the last word of every half second is stored with the job.

        What is said after the run has ended is dropped.

        :param fraction: from 0 to 1; others are brought to the nearer end.
        :param text: at most `MAX_TEXT` characters are kept.
        """
        fraction = float(fraction)
        if math.isnan(fraction):
            raise ValueError("progress is a number from 0 to 1, not NaN")
        if self.outcome is None:
            told = Progress(min(1.0, max(0.0, fraction)), storable(str(text), MAX_TEXT))
            self._say(self._attempt, told)

    def log(self, message: str, level: int = logging.INFO) -> None:
        """Write a line to the worker's log, by the logger ``chancy.job``, under this job's id."""
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "%s",
                storable(str(message), MAX_LINE),
                extra={"job_id": str(self.id), "func": self.func, "attempt": self.attempt},
            )

    # For executors

    def bind(self, attempt: Attempt, say: Say) -> bool:
        """Take over a context that was made for `around` hooks, and have its progress told. False
        if it is of another attempt."""
        if attempt is not self._attempt:
            return False
        self._say = say
        return True

    def ask_to_stop(self, why: str) -> None:
        """Set `cancelled`. The first reason stays."""
        if self._why is None:
            self._why = why

    @property
    def heeded(self) -> bool:
        """Whether the job has looked at `cancelled` since it was set."""
        return self._seen


CURRENT: ContextVar[JobContext] = ContextVar("chancy_current_job")


def current_job() -> JobContext:
    """The job that runs here.

    :raises NoCurrentJob: none does: the function was called directly, or from a thread that did
        not take the context of the job along.
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise NoCurrentJob(
            "current_job() was called outside of a job, or in a thread that was started without "
            "its context: start threads with contextvars.copy_context().run, or hand the job over"
        ) from None

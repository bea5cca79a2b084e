"""What a running job knows of itself, and may say: ``current_job()``."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast, overload
from uuid import UUID

from chancy.attempt.outcome import Outcome
from chancy.context.host import AttemptHost, Completion, PendingWrite
from chancy.context.host import AttemptInfo as AttemptInfo
from chancy.context.host import Progress as Progress
from chancy.context.steps import KEY, Steps
from chancy.errors import ConfigurationError, Interrupted, LeaseLost, NoCurrentJob
from chancy.job.definition import DECORATED
from chancy.serialization.signature import Signature
from chancy.text import storable

logger = logging.getLogger("chancy.job")

#: The longest text of a progress report, and of a line that a job logs, in characters.
MAX_TEXT = 1_000
MAX_LINE = 16_000


P = ParamSpec("P")
T = TypeVar("T")


_opening = threading.Lock()


class JobContext:
    """The attempt that runs here, for the function that it runs.

    Its methods may be called from any thread of the process that the job runs in.

    :param attempt: the claim, or what an executor's child knows of it.
    :param outside: takes what is said here; called in the thread that says it.
    :param deadline: when the time limit ends it, by ``time.monotonic()``; None without a limit.
    :param stack: what is closed after the run, by who made the context.
    """

    __slots__ = (
        "_attempt",
        "_meta",
        "_outside",
        "_seen",
        "_stack",
        "_steps",
        "_why",
        "deadline",
        "outcome",
    )

    def __init__(
        self,
        attempt: AttemptInfo,
        outside: AttemptHost,
        deadline: float | None = None,
        stack: AsyncExitStack | None = None,
    ) -> None:
        self._attempt = attempt
        self._outside = outside
        self._steps: Steps | None = None
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
    def lease(self) -> UUID:
        """The random id of the claim: no later attempt at the job has the same."""
        return self._attempt.lease

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

        What is said after the run has ended, or after `complete_in`, is dropped.

        :param fraction: from 0 to 1; others are brought to the nearer end.
        :param text: at most `MAX_TEXT` characters are kept.
        """
        fraction = float(fraction)
        if math.isnan(fraction):
            raise ValueError("progress is a number from 0 to 1, not NaN")
        if self.outcome is None and not (self._steps is not None and self._steps.closed):
            told = Progress(min(1.0, max(0.0, fraction)), storable(str(text), MAX_TEXT))
            self._outside.say(self._attempt, told)

    def log(self, message: str, level: int = logging.INFO) -> None:
        """Write a line to the worker's log, by the logger ``chancy.job``, under this job's id."""
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "%s",
                storable(str(message), MAX_LINE),
                extra={"job_id": str(self.id), "func": self.func, "attempt": self.attempt},
            )

    # Steps

    @overload
    async def step(
        self,
        name: str,
        function: Callable[P, Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    async def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    async def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function once for this job: when this returns its value is stored, and later
        attempts are given that instead of calling it again.

        The value is given as it comes back from JSON, the first time, too. A plain function is
        called here, in the event loop.

        :param name: tells the steps of a job apart; each name once in an attempt.
        :raises InvalidStep: the name was used, or cannot be; or there are too many steps.
        :raises PushError: JSON cannot hold the value, or there is no room for it.
        :raises LeaseLost: this attempt does not count any more; the value was not stored.
        :raises Interrupted: the attempt is to end.
        """
        return await self._open().run(name, function, args, kwargs)

    def sync_step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`step` for plain functions."""
        return cast("T", self._open().sync_run(name, function, args, kwargs))

    def _open(self) -> Steps:
        if self._steps is None:
            with _opening:
                if self._steps is None:
                    limit = self._outside.max_payload
                    self._steps = Steps(self, self.meta.get(KEY), limit=limit)
        return self._steps

    def keep(self, meta: str) -> PendingWrite:
        """Have keys put over the job's meta."""
        return self._outside.keep(self._attempt, meta)

    # Completion

    async def complete_in(self, tx: object, result: Any = None) -> None:
        """End this job as succeeded in a transaction of yours: what else is done there and the
        job's end are committed together, or not at all.

        Call it last, and commit soon: until then the job's row is locked, and the server ends a
        session that is idle for 10 seconds in the transaction. If it is rolled back, the job ends
        as the function does; after a commit nothing that the function does changes its end.

        :param tx: anything that `Chancy.push` takes as ``within``, on the database of the jobs.
        :param result: stored as the job's result; what the function returns is not.
        :raises LeaseLost: another worker has the job, or it has ended: roll back, by letting this
            error out of the transaction.
        :raises InvalidResult: the result does not fit the annotation, or JSON cannot hold it.
        :raises PayloadTooLarge: it is over the limit.
        """
        completion, text = self._completion(result)
        self._end_in(await completion.complete(tx, self.id, self._attempt.lease, text))

    def sync_complete_in(self, tx: object, result: Any = None) -> None:
        """`complete_in` for plain functions, with a connection that blocks."""
        completion, text = self._completion(result)
        self._end_in(completion.sync_complete(tx, self.id, self._attempt.lease, text))

    def _completion(self, result: object) -> tuple[Completion, str | None]:
        place = self._outside.completion
        if place is None:
            raise ConfigurationError(
                "complete_in() needs jobs that are kept in Postgres, and run by a worker: no other "
                "broker offers settling in a transaction"
            )
        completion = place.find()
        text = None
        if result is not None:
            limit = self._outside.max_payload
            function = DECORATED.get(self.func, _of_any_result)
            text = Signature.of(function, self.func).encode_result(result, limit)
        return completion, text

    def _end_in(self, completed: bool) -> None:
        if completed:
            # What would be stored now waited for the row, which is locked until the commit.
            self._open().closed = True
            self._outside.completing(self._attempt)
            return
        why = (
            f"job {self.id} ({self.func}) cannot be completed: its lease is lost, since another "
            "worker has it or it has ended; or the transaction is on another database"
        )
        self.ask_to_stop(why)
        raise LeaseLost(why)

    # For executors

    def bind(self, attempt: AttemptInfo, outside: AttemptHost) -> bool:
        """Take over a context that was made for `around` hooks, and hear what is said in it. False
        if it is of another attempt."""
        if attempt is not self._attempt:
            return False
        self._outside = outside
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


def _of_any_result() -> Any:
    """Says nothing of the result, as a function does that is not a decorated one."""

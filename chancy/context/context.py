"""The context of a running job, ``current_job()``."""

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

from chancy.attempt.claim import Claim
from chancy.attempt.outcome import Outcome
from chancy.context.checkpoints import KEY, Checkpoints
from chancy.context.host import AttemptHost, Completion, PendingWrite
from chancy.context.host import AttemptInfo as AttemptInfo
from chancy.context.host import Progress as Progress
from chancy.errors import ConfigurationError, Interrupted, LeaseLost, NoCurrentJob
from chancy.job.definition import DECORATED
from chancy.serialization.codec import encode
from chancy.serialization.signature import Signature
from chancy.text import storable

logger = logging.getLogger("chancy.job")

#: The maximum characters of the text of a progress report, and of a line that a job logs.
MAX_TEXT = 1_000
MAX_LINE = 16_000

P = ParamSpec("P")
T = TypeVar("T")

_checkpoints_lock = threading.Lock()


class JobContext:
    """The running attempt, as seen by its function.

    Its methods may be called from any thread of the process that runs the job.

    :param attempt: the claim, or the part of it that an executor's child process has.
    :param outside: receives progress, checkpoints and the completion; called in the thread of the
        caller.
    :param deadline: when the time limit ends the attempt, by ``time.monotonic()``; None without a
        limit.
    :param stacked: whether the creator of the context closes its `stack` after the run.
    """

    __slots__ = (
        "_attempt",
        "_carries",
        "_checkpoints",
        "_meta",
        "_outside",
        "_seen",
        "_stack",
        "_stacked",
        "_why",
        "deadline",
        "outcome",
    )

    def __init__(
        self,
        attempt: AttemptInfo,
        outside: AttemptHost,
        deadline: float | None = None,
        stacked: bool = False,
    ) -> None:
        self._attempt = attempt
        self._outside = outside
        self._checkpoints: Checkpoints | None = None
        self._meta: Mapping[str, Any] | None = None
        self._carries = False
        self._why: str | None = None
        self._seen = False
        self._stacked = stacked
        self._stack: AsyncExitStack | None = None
        self.deadline = deadline
        #: The outcome of the run; None until it ends.
        self.outcome: Outcome | None = None

    @property
    def id(self) -> UUID:
        """The id of the job."""
        return self._attempt.id

    @property
    def lease(self) -> UUID:
        """The random id of the claim; each attempt at the job has a different one."""
        return self._attempt.lease

    @property
    def worker_id(self) -> UUID | None:
        """The worker that runs this attempt; None in an executor process."""
        found: UUID | None = getattr(self._attempt, "worker_id", None)
        return found if found is not None and found.int else None

    @property
    def queue(self) -> str:
        return self._attempt.queue

    @property
    def func(self) -> str:
        """The path of the function."""
        return self._attempt.func

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.attempt

    @property
    def max_attempts(self) -> int:
        return self._attempt.max_attempts

    @property
    def crashes(self) -> int:
        """How often a process has died while it ran this job."""
        return self._attempt.crashes

    @property
    def meta(self) -> Mapping[str, Any]:
        """The job's meta when this attempt began. Do not modify it."""
        if self._meta is None:
            text = self._attempt.meta
            try:
                stored = json.loads(text) if text else {}
            except (ValueError, RecursionError):
                stored = {}
            self._meta = stored if isinstance(stored, dict) else {}
        return self._meta

    def carry(self, /, **meta: Any) -> None:
        """Set keys of `meta` for this run only, also in executor processes; nothing is stored.

        For `around` hooks that pass a value to the function, before it is called.
        """
        self._meta = {**self.meta, **meta}
        self._carries = True

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time limit, 0 once it has passed; None without a limit."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether this attempt should stop: it was cancelled, reached its time limit, or lost its
        lease. If so, the job should clean up and return."""
        if self._why is None:
            return False
        self._seen = True
        return True

    @property
    def why_cancelled(self) -> str | None:
        """Why the attempt should stop; None if it should not."""
        return self._why if self.cancelled else None

    def check(self) -> None:
        """Raise `Interrupted` if this attempt should stop."""
        if self.cancelled:
            raise Interrupted(self._why or "")

    @property
    def stack(self) -> AsyncExitStack:
        """An exit stack that is closed after the run, whatever the outcome, in the worker's event
        loop and before the `around` hooks are exited. Hooks and jobs may register cleanup on it.

        :raises NoCurrentJob: there is no stack: no plugin of the worker has an `around` hook, or
            the job runs in a child process, which does not run the worker's hooks.
        """
        if not self._stacked:
            raise NoCurrentJob(
                "this job has no stack: only a job that shares its process with an `around` hook "
                "has one; use `with` or an ExitStack in the function"
            )
        if self._stack is None:
            self._stack = AsyncExitStack()
        return self._stack

    @property
    def has_stack(self) -> bool:
        """Whether `stack` was used."""
        return self._stack is not None

    def progress(self, fraction: float, text: str = "") -> None:
        """Report the job's progress; the last report of each half second is stored with the job.

        Reports after the end of the run, or after `complete_in`, are dropped.

        :param fraction: from 0 to 1; other values are clamped to this range.
        :param text: at most `MAX_TEXT` characters are stored.
        """
        fraction = float(fraction)
        if math.isnan(fraction):
            raise ValueError("progress must be a number from 0 to 1, not NaN")
        if self.outcome is None and not (
            self._checkpoints is not None and self._checkpoints.closed
        ):
            progress = Progress(min(1.0, max(0.0, fraction)), storable(str(text), MAX_TEXT))
            self._outside.say(self._attempt, progress)

    def log(self, message: str, level: int = logging.INFO) -> None:
        """Write a line with this job's id to the worker's log, through the logger
        ``chancy.job``."""
        if logger.isEnabledFor(level):
            logger.log(
                level,
                "%s",
                storable(str(message), MAX_LINE),
                extra={
                    "job_id": str(self.id),
                    "func": self.func,
                    "attempt": self.attempt,
                    "worker_id": self.worker_id,
                },
            )

    # Checkpoints

    @overload
    async def checkpoint(
        self,
        name: str,
        function: Callable[P, Awaitable[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...
    @overload
    async def checkpoint(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    async def checkpoint(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a function once for this job and store its value. Later attempts return the stored
        value instead of calling it again.

        The value is stored when this returns, by the function's return annotation, like the result
        of a job. Even the first time, it is returned as read back. A plain function is called in
        the event loop.

        :param name: identifies the checkpoint; each name may be used once in an attempt.
        :raises InvalidCheckpoint: the name is invalid or already used, there are too many
            checkpoints, values of the annotation cannot be stored, or the value does not fit it.
            The job is not retried.
        :raises PayloadTooLarge: the checkpoints are over the size limit.
        :raises LeaseLost: this attempt no longer owns the job; the value was not stored.
        :raises BrokerError: the store refuses the value, or the worker is stopping.
        :raises Interrupted: the attempt should stop.
        """
        return await self._open().run(name, function, args, kwargs)

    def sync_checkpoint(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`checkpoint` for plain functions."""
        return cast("T", self._open().sync_run(name, function, args, kwargs))

    def _open(self) -> Checkpoints:
        if self._checkpoints is None:
            with _checkpoints_lock:
                if self._checkpoints is None:
                    limit = self._outside.max_payload
                    self._checkpoints = Checkpoints(self, self.meta.get(KEY), limit=limit)
        return self._checkpoints

    def keep(self, meta: str) -> PendingWrite:
        """Merge keys into the job's meta."""
        return self._outside.keep(self._attempt, meta)

    # Completion

    async def complete_in(self, tx: object, result: Any = None) -> None:
        """Complete this job as succeeded in your transaction, so that its other writes and the
        job's completion are committed together, or not at all.

        Call it last, and commit soon. Until then, the job's row is locked, and the server ends a
        session that is idle for 10 seconds in the transaction. If the transaction is rolled back,
        the function's own outcome applies; after a commit, it is ignored.

        :param tx: anything that `Chancy.push` takes as ``within``, on the database of the jobs.
        :param result: stored as the job's result, instead of the function's return value.
        :raises LeaseLost: another worker has the job, or it has ended. Let this error leave the
            transaction, so that it is rolled back.
        :raises InvalidResult: the result does not fit the annotation, or JSON cannot hold it.
        :raises PayloadTooLarge: the result is over the limit.
        """
        completion, text = self._completion(result)
        self._end_in(await completion.complete(tx, self.id, self._attempt.lease, text))

    def sync_complete_in(self, tx: object, result: Any = None) -> None:
        """`complete_in` for plain functions, with a blocking connection."""
        completion, text = self._completion(result)
        self._end_in(completion.sync_complete(tx, self.id, self._attempt.lease, text))

    def _completion(self, result: object) -> tuple[Completion, str | None]:
        reference = self._outside.completion
        if reference is None:
            raise ConfigurationError(
                "complete_in() needs a job that is stored in Postgres and run by a worker: no "
                "other broker can complete a job in a transaction"
            )
        completion = reference.find()
        text = None
        if result is not None:
            limit = self._outside.max_payload
            function = DECORATED.get(self.func, _of_any_result)
            text = Signature.of(function, self.func).encode_result(result, limit)
        return completion, text

    def _end_in(self, completed: bool) -> None:
        if completed:
            # A later write would wait for the job's row, which is locked until the commit.
            self._open().closed = True
            self._outside.completing(self._attempt)
            return
        why = (
            f"job {self.id} ({self.func}) cannot be completed: its lease is lost (another worker "
            "has the job, or it has ended), or the transaction is on another database"
        )
        self.ask_to_stop(why)
        raise LeaseLost(why)

    # For executors

    def bind(self, attempt: AttemptInfo, outside: AttemptHost) -> bool:
        """Attach an executor to a context that was created for `around` hooks. Returns False if
        the context belongs to another attempt."""
        if attempt is not self._attempt:
            return False
        self._outside = outside
        return True

    def carrying(self, claim: Claim) -> Claim:
        """The claim to run, with the keys that `carry` has set."""
        if self._carries:
            limit = max(self._outside.max_payload, 2 * len(claim.meta or ""))
            text = encode(self.meta, what="the meta of an `around` hook", limit=limit)
            self._attempt = claim = claim._replace(meta=text)
            self._carries = False
        return claim

    def ask_to_stop(self, why: str) -> None:
        """Set `cancelled`. The first reason is kept."""
        if self._why is None:
            self._why = why

    @property
    def heeded(self) -> bool:
        """Whether the job has read `cancelled` since it was set."""
        return self._seen


#: The context of the running job, for `current_job`. An executor sets it where the function runs.
CURRENT: ContextVar[JobContext] = ContextVar("chancy_current_job")


def current_job() -> JobContext:
    """Return the context of the running job.

    :raises NoCurrentJob: the function was called directly instead of by a job, or runs in a thread
        that does not have the job's context.
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise NoCurrentJob(
            "current_job() was called outside a job, or in a thread that was started without "
            "its context: start threads with contextvars.copy_context().run, or pass the job"
        ) from None


def _of_any_result() -> Any:
    """Stands for a function that is not decorated, whose result has no annotation."""

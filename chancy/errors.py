"""Every error that chancy raises.

ChancyError
├── ConfigurationError      a setting, name, DSN or queue that cannot work; nothing was written
│   └── SchemaMismatch      the database is behind or ahead of this version of chancy
├── PushError               a job that was refused before anything was written
│   ├── InvalidArguments    arguments that do not fit the function, or that JSON cannot hold
│   ├── PayloadTooLarge     arguments or meta over the limit
│   └── DuplicateJob        a unique key that another job has, where that is to be an error
├── JobError
│   ├── JobFailed           result() of a job that failed for good
│   ├── JobCancelled        result() of a job that was cancelled
│   ├── UnknownFunction     the worker does not know the function, or may not import it
│   ├── UnsupportedLimit    a limit that the executor of the queue cannot keep to
│   ├── NoCurrentJob        current_job() was called where no job runs
│   ├── InvalidResult       a result that does not fit its annotation, or that JSON cannot hold
│   ├── InvalidAnswer       a Snooze, Cancel or Retry that cannot be
│   ├── InvalidStep         a step that cannot be run or kept
│   ├── LeaseLost           the attempt that runs here is no longer the one that counts
│   └── WaitTimeout         a job did not finish within the time asked for
└── BrokerError             the store did not do what was asked
    ├── BrokerUnavailable   no connection, or it broke; the outcome of the call is unknown
    └── StatementFailed     the server refused the statement; nothing of it was kept

Interrupted, which is raised in a job to stop it, is no ChancyError and not even an Exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID


class ChancyError(Exception):
    """Base of every error raised by chancy."""


class ConfigurationError(ChancyError):
    """A setting, name, DSN or queue cannot work. Nothing was written."""


class SchemaMismatch(ConfigurationError):
    """The tables are missing, behind or ahead of this version of chancy."""


class PushError(ChancyError):
    """A job was refused. Nothing of the call was written."""


class InvalidArguments(PushError):
    """The arguments do not fit the function, or JSON and Postgres cannot hold them."""


class PayloadTooLarge(PushError):
    """The encoded arguments or meta are over the limit of the application."""


class DuplicateJob(PushError):
    """Another job has the unique key of a job that was pushed with ``on_conflict="raise"``.

    :param id: the other job; with a period it may have finished.
    :param func: the function of the job that was pushed.
    """

    def __init__(self, id: UUID, func: str) -> None:
        self.id = id
        self.func = func
        super().__init__(f"job {func}: its unique key is held by job {id}; nothing was pushed")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.func)


class JobError(ChancyError):
    """Something about one job."""


class JobFailed(JobError):
    """A job failed for good: raised where its result is asked for.

    :param last: the last of the job's errors, as ``QueuedJob.errors`` has them.
    """

    def __init__(self, id: UUID, func: str, last: Mapping[str, Any]) -> None:
        types = last.get("types")
        self.id = id
        self.func = func
        #: The names of the type of the exception and of its bases, the own one first.
        self.types: tuple[str, ...] = tuple(map(str, types)) if isinstance(types, list) else ()
        self.message = str(last.get("message", ""))
        #: The traceback as text.
        self.trace = str(last.get("trace", ""))
        super().__init__(f"job {id} ({func}) failed: {self.type_name}: {self.message}")

    @property
    def type_name(self) -> str:
        """The type of the exception with its module, ``builtins.ValueError``."""
        return self.types[0] if self.types else "unknown"

    def is_a(self, type_name: str) -> bool:
        """Whether the exception's type, or a base of it, has this name."""
        return type_name in self.types

    def __reduce__(self) -> tuple[Any, ...]:
        last = {"types": list(self.types), "message": self.message, "trace": self.trace}
        return type(self), (self.id, self.func, last)


class JobCancelled(JobError):
    """A job was cancelled: raised where its result is asked for."""


class UnknownFunction(JobError):
    """This process does not know the function of a job, or is not allowed to import it."""


class UnsupportedLimit(JobError):
    """A job has a limit that the executor of its queue cannot keep to."""


class NoCurrentJob(JobError, LookupError):
    """``current_job()`` was called where no job runs."""


class InvalidResult(JobError):
    """What a function returned does not fit its annotation, or JSON and Postgres cannot hold it.

    The function did return, so what it has done stands: such a job is not retried.
    """


class InvalidAnswer(JobError, ValueError):
    """A job made a `Snooze`, `Cancel` or `Retry` that cannot be."""


class InvalidStep(JobError, ValueError):
    """A step of a job cannot be run or kept: its name, its function, or too many of them."""


class LeaseLost(JobError):
    """The attempt that runs here is no longer the one that counts.

    This worker was taken for dead and another one has the job, or it is settled already. What
    this attempt would still do, another one does or has done: let the error end it.
    """


class Interrupted(BaseException):
    """Raised in a running job to stop it: its time is up, or somebody cancelled it.

    Not an `Exception`, so that a job which catches those ends all the same. It may clean up, for
    as long as the grace of its queue is, and should raise this on.
    """


class WaitTimeout(JobError, TimeoutError):
    """The job did not finish within the time asked for. It goes on."""


class BrokerError(ChancyError):
    """The store did not do what was asked."""

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed if it is made again."""
        return False


class BrokerUnavailable(BrokerError):
    """There is no connection, or it broke during the call.

    The outcome of the call is unknown: it may have been committed. Every call of a
    broker is safe to repeat for this reason.
    """

    @property
    def retryable(self) -> bool:
        return True


class NotOpen(BrokerUnavailable):
    """Nobody has opened the broker, or it was closed: nothing was sent."""

    @property
    def retryable(self) -> bool:
        return False


# Classes and codes after which the same statement may succeed: a serialization failure or
# deadlock (40), resources (53), a lock or statement timeout (55P03, 57014), an operator's
# intervention (57P), an I/O error of the server (58), and plans made stale by a migration
# (0A000, 26000, 42P05: a fresh statement works).
_RETRYABLE_CLASSES = ("40", "53", "57", "58")
_RETRYABLE_CODES = frozenset({"55P03", "0A000", "26000", "42P05"})


class StatementFailed(BrokerError):
    """The server refused a statement. Nothing of it was kept.

    :param sqlstate: of Postgres, the five characters of the SQL standard, for example ``40001``.
        Empty of a store that has no such codes, as Redis: its own words are in the message.
    :param passing: of such a store, whether the same statement may succeed later.
    """

    def __init__(self, message: str, *, sqlstate: str = "", passing: bool = False) -> None:
        super().__init__(f"{message} (SQLSTATE {sqlstate})" if sqlstate else message)
        self.sqlstate = sqlstate
        self._passing = passing

    @property
    def retryable(self) -> bool:
        if not self.sqlstate:
            return self._passing
        return self.sqlstate[:2] in _RETRYABLE_CLASSES or self.sqlstate in _RETRYABLE_CODES

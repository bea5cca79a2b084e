"""Every error that chancy raises. docs/reference/errors.md has them as a tree.

`Interrupted`, which is raised in a job to stop it, is neither a `ChancyError` nor an `Exception`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID


class ChancyError(Exception):
    """Base of every error raised by chancy."""


class ConfigurationError(ChancyError):
    """A setting, name, DSN or queue is invalid. Nothing was written."""


class SchemaMismatch(ConfigurationError):
    """The tables are missing, behind or ahead of this version of chancy."""


class PushError(ChancyError):
    """A job was rejected. Nothing of the call was written."""


class InvalidArguments(PushError):
    """The arguments do not fit the function, or JSON and Postgres cannot hold them."""


class PayloadTooLarge(PushError):
    """Encoded arguments, meta, checkpoints or a result are over the limit of the application.

    A job that raises this, or whose result is too large, is not retried.
    """


class DuplicateJob(PushError):
    """Another job holds the unique key of a job that was pushed with ``on_conflict="raise"``.

    :param id: the job that holds the key. If the rule has a period, that job may be finished.
    :param func: the function of the rejected job.
    :param together: whether both jobs are of the same `push_many`, so that neither was stored.
    """

    def __init__(self, id: UUID, func: str, together: bool = False) -> None:
        self.id = id
        self.func = func
        self.together = together
        why = (
            "another job of the same call has its unique key"
            if together
            else f"its unique key is held by job {id}"
        )
        super().__init__(f"job {func}: {why}; nothing was pushed")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.func, self.together)


class JobError(ChancyError):
    """Base of the errors about a single job."""


class JobFailed(JobError):
    """The job failed for good. Raised when its result is read.

    :param last: the last entry of ``QueuedJob.errors``.
    """

    def __init__(self, id: UUID, func: str, last: Mapping[str, Any]) -> None:
        types = last.get("types")
        self.id = id
        self.func = func
        #: Names of the exception's type and of its base classes, most specific first.
        self.types: tuple[str, ...] = tuple(map(str, types)) if isinstance(types, list) else ()
        self.message = str(last.get("message", ""))
        #: The traceback, as a string.
        self.trace = str(last.get("trace", ""))
        super().__init__(f"job {id} ({func}) failed: {self.type_name}: {self.message}")

    @property
    def type_name(self) -> str:
        """The exception's type with its module, such as ``builtins.ValueError``."""
        return self.types[0] if self.types else "unknown"

    def is_a(self, type_name: str) -> bool:
        """Whether the exception's type, or one of its base classes, has this name."""
        return type_name in self.types

    def __reduce__(self) -> tuple[Any, ...]:
        last = {"types": list(self.types), "message": self.message, "trace": self.trace}
        return type(self), (self.id, self.func, last)


class JobCancelled(JobError):
    """The job was cancelled. Raised when its result is read."""


class UnknownFunction(JobError):
    """The function of a job is not registered in this process, and may not be imported."""


class UnknownVersion(UnknownFunction):
    """The arguments of a job have a later version than its function in this process."""


class ImportTimeout(JobError):
    """The module of a job's function took too long to import. The job has not started."""


class UnsupportedLimit(JobError):
    """A job has a limit that the executor of its queue cannot enforce."""


class NoCurrentJob(JobError, LookupError):
    """``current_job()`` was called outside a job."""


class InvalidResult(JobError):
    """A result does not fit its annotation, or JSON and Postgres cannot hold it.

    The function did return and its side effects remain, so the job is not retried.
    """


class UnreadablePayload(JobError):
    """Stored arguments or a stored result are encrypted, and cannot be decrypted in this process.

    A job whose arguments cannot be decrypted is not run, and not retried.
    """


class InvalidAnswer(JobError, ValueError):
    """A job created a `Snooze`, `Cancel` or `Retry` with an invalid value."""


class InvalidCheckpoint(JobError, ValueError):
    """A checkpoint cannot be run or stored: its name, function or value is invalid, or there are
    too many.

    If its value is invalid, the function did run and its side effects remain, so a job that raises
    this is not retried.
    """


class LeaseLost(JobError):
    """This attempt no longer owns the job.

    The worker was presumed dead and another worker took the job over, or the job is already
    settled. Any further work would be duplicated: let the error end the attempt.
    """


class Interrupted(BaseException):
    """Raised in a running job to stop it, at its time limit or after a cancel.

    Not an `Exception`, so that ``except Exception`` in a job does not swallow it. The job may
    clean up during the grace period of its queue, and should then re-raise it.
    """


class WaitTimeout(JobError, TimeoutError):
    """The job did not finish within the timeout. It keeps running."""


class BrokerError(ChancyError):
    """A call to the store failed."""

    #: Whether the same call may succeed when it is repeated.
    retryable: bool = False


class BrokerUnavailable(BrokerError):
    """There is no connection, or it broke during the call.

    The outcome of the call is unknown: it may have been committed. For this reason every broker
    call is safe to repeat.
    """

    retryable = True
    #: Whether the session may only read, because ``default_transaction_read_only`` is on.
    read_only = False
    #: Whether the server runs, and refused this connection or statement: it may go on with those of
    #: others.
    refused = False


class NotOpen(BrokerUnavailable):
    """The broker has not been opened, or was closed. Nothing was sent."""

    retryable = False


#: The SQLSTATE of a lock timeout.
LOCK_NOT_AVAILABLE = "55P03"

# Classes and codes after which the same statement may succeed: a serialization failure or
# deadlock (40), resources (53), a lock or statement timeout (55P03, 57014), an operator's
# intervention (57P), an I/O error of the server (58), and plans made stale by a migration
# (0A000, 26000, 42P05: a fresh statement works).
_RETRYABLE_CLASSES = ("40", "53", "57", "58")
_RETRYABLE_CODES = frozenset({LOCK_NOT_AVAILABLE, "0A000", "26000", "42P05"})


class RowsLocked(BrokerError):
    """The rows of some running jobs cannot be written now: other transactions have locked them, or
    the server refuses any outcome of these jobs. Everything else of the call is stored.

    :param ids: the jobs for which nothing is stored.
    :param stale: those of the other jobs whose lease is lost.
    """

    def __init__(self, ids: frozenset[UUID], stale: frozenset[UUID]) -> None:
        self.ids = ids
        self.stale = stale
        super().__init__(
            f"another transaction has locked the rows of {len(ids):,} running jobs, or the server "
            "refuses any outcome of them"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.ids, self.stale)

    retryable = True


class StatementFailed(BrokerError):
    """The server rejected a statement. Nothing of it was stored.

    :param sqlstate: the SQLSTATE of Postgres, five characters such as ``40001``. Empty for a broker
        without such codes, such as Redis; the message then has the server's own text.
    :param passing: whether the same statement may succeed later, if the code does not show it.
    """

    def __init__(self, message: str, *, sqlstate: str = "", passing: bool = False) -> None:
        super().__init__(f"{message} (SQLSTATE {sqlstate})" if sqlstate else message)
        self.sqlstate = sqlstate
        self.retryable = (
            passing or sqlstate[:2] in _RETRYABLE_CLASSES or sqlstate in _RETRYABLE_CODES
        )

"""Every error that chancy raises.

ChancyError
├── ConfigurationError      a setting, name, DSN or queue that cannot work; nothing was written
│   └── SchemaMismatch      the database is behind or ahead of this version of chancy
├── PushError               a job that was refused before anything was written
│   ├── InvalidArguments    arguments that do not fit the function, or that JSON cannot hold
│   └── PayloadTooLarge     arguments or meta over the limit
├── JobError
│   ├── UnknownFunction     the worker does not know the function, or may not import it
│   ├── UnsupportedLimit    a limit that the executor of the queue cannot keep to
│   ├── NoCurrentJob        current_job() was called where no job runs
│   └── WaitTimeout         a job did not finish within the time asked for
└── BrokerError             the store did not do what was asked
    ├── BrokerUnavailable   no connection, or it broke; the outcome of the call is unknown
    └── StatementFailed     the server refused the statement; nothing of it was kept

Interrupted, which is raised in a job to stop it, is no ChancyError and not even an Exception.
"""

from __future__ import annotations


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


class JobError(ChancyError):
    """Something about one job."""


class UnknownFunction(JobError):
    """This process does not know the function of a job, or is not allowed to import it."""


class UnsupportedLimit(JobError):
    """A job has a limit that the executor of its queue cannot keep to."""


class NoCurrentJob(JobError, LookupError):
    """``current_job()`` was called where no job runs."""


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


# Classes and codes after which the same statement may succeed: a serialization failure or
# deadlock (40), resources (53), a lock or statement timeout (55P03, 57014), an operator's
# intervention (57P), an I/O error of the server (58), and plans made stale by a migration
# (0A000, 26000, 42P05: a fresh statement works).
_RETRYABLE_CLASSES = ("40", "53", "57", "58")
_RETRYABLE_CODES = frozenset({"55P03", "0A000", "26000", "42P05"})


class StatementFailed(BrokerError):
    """The server refused a statement. Nothing of it was kept.

    :param sqlstate: the five characters of the SQL standard, for example ``40001``.
    """

    def __init__(self, message: str, *, sqlstate: str) -> None:
        super().__init__(f"{message} (SQLSTATE {sqlstate})")
        self.sqlstate = sqlstate

    @property
    def retryable(self) -> bool:
        return self.sqlstate[:2] in _RETRYABLE_CLASSES or self.sqlstate in _RETRYABLE_CODES

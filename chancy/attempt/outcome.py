"""The outcome of one attempt: a closed union. `judge` decides about its consequences."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from chancy.attempt.failure import Failure


class Returned(NamedTuple):
    """The function returned. ``result`` is a JSON string, or None if it returned None."""

    result: str | None = None
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised, or could not be called.

    :param again: when the next attempt starts, in UTC or as a delay, if the function raised
        `Retry`.
    :param error: the exception, if it was raised in this process; for log records.
    """

    failure: Failure
    elapsed_s: float = 0.0
    again: datetime | timedelta | None = None
    error: BaseException | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt was stopped at its time limit."""

    limit_s: float
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MemoryExceeded:
    """The attempt was stopped at its memory limit."""

    limit_bytes: int
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The attempt was cancelled, by a request or by its own function."""

    why: str
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The job runs again later, and this attempt does not count.

    :param asked: whether the function requested it, and not the worker.
    :param rate_limited: whether the function raised `RateLimited`.
    """

    until: datetime | timedelta
    elapsed_s: float = 0.0
    asked: bool = False
    rate_limited: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """The attempt did not start, or the worker interrupted it. It does not count."""

    why: str
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SetAside:
    """The worker does not know the function: the job waits for a worker that does. It does not
    count as an attempt."""

    why: str
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lost:
    """The process that ran the attempt died without reporting an outcome.

    :param host: the machine it ran on, if another process reports the death and has its name.
    """

    why: str
    elapsed_s: float = 0.0
    host: str | None = None


Outcome = (
    Returned | Raised | TimedOut | MemoryExceeded | Cancelled | Snoozed | Released | SetAside | Lost
)

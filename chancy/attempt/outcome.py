"""What happened in one attempt: a closed union, without a decision about what follows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from chancy.attempt.failure import Failure


class Returned(NamedTuple):
    """The function returned. ``result`` is JSON text, or None for None."""

    result: str | None = None
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised, or could not be called.

    :param again: when the next attempt is to begin, if the function said so; in UTC.
    """

    failure: Failure
    elapsed_s: float = 0.0
    again: datetime | timedelta | None = None


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
    """The attempt was stopped because somebody asked for it, or the function did."""

    why: str
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The job is to be run again later, and this attempt does not count.

    :param asked: the function asked for it, and not the worker.
    """

    until: datetime | timedelta
    elapsed_s: float = 0.0
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """The attempt did not start, or was interrupted by us. It costs the job nothing."""

    why: str
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lost:
    """The process that ran the attempt died without a word.

    :param host: the machine it was on, where somebody else tells of its death and knows it.
    """

    why: str
    elapsed_s: float = 0.0
    host: str | None = None


Outcome = Returned | Raised | TimedOut | MemoryExceeded | Cancelled | Snoozed | Released | Lost

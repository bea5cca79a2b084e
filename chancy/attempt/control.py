"""Control results: `Snooze`, `Cancel`, `Retry` and `RateLimited`, which a job returns or raises."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from chancy.errors import InvalidAnswer
from chancy.text import shown

#: The maximum delay. The calendars of Postgres and Python both reach further.
MAX_DELAY = timedelta(days=365_000)

#: A time or a delay: an aware datetime, a timedelta, or seconds.
When: TypeAlias = "datetime | timedelta | float"


@dataclass(frozen=True, slots=True)
class Snooze:
    """``return Snooze(60)``: run this job again later. This attempt does not count.

    The job waits as ``scheduled``, even if it has only one attempt. ``meta["snoozes"]`` counts its
    snoozes; their number is not limited.

    :param until: an aware datetime (a past time: within a second), or a delay by the clock of the
        database, as a timedelta or in seconds.
    :raises InvalidAnswer: the value has another type, is below 0, or is over `MAX_DELAY`.
    """

    until: When

    @property
    def moment(self) -> datetime | timedelta:
        """The time in UTC, or the delay."""
        return _checked("Snooze", self.until)

    def __post_init__(self) -> None:
        _checked("Snooze", self.until)


@dataclass(frozen=True, slots=True)
class Cancel:
    """``return Cancel("the order is gone")``: end this job as ``cancelled``.

    :param reason: stored with the job's errors.
    :raises InvalidAnswer: the reason is not a string.
    """

    reason: str = "the job cancelled itself"

    def __post_init__(self) -> None:
        reason: object = self.reason
        if not isinstance(reason, str):
            raise InvalidAnswer(f"Cancel({shown(reason)}): the reason must be a string")


class Retry(Exception):
    """``raise Retry(30)``: fail this attempt and start the next one at a given time.

    It counts like any other failure, is stored in the job's errors, and fails the job for good if
    no attempts are left. It overrides the retry plugin, and works without it. The error that is
    being handled, or that of ``raise Retry(30) from error``, is stored as the cause; a job that
    fails for good fails with it.

    :param at: an aware datetime (a past time: within a second), or a delay by the clock of the
        database, as a timedelta or in seconds.
    :param reason: stored with the failure.
    :raises InvalidAnswer: the value has another type, is below 0, or is over `MAX_DELAY`.
    """

    def __init__(self, at: When, reason: str = "") -> None:
        #: The time in UTC, or the delay.
        self.moment = _checked("Retry", at)
        super().__init__(at, reason)
        self._reason = reason

    def __str__(self) -> str:
        return str(self._reason) or f"the job requested a retry {_in_words(self.moment)}"


class RateLimited(Exception):
    """``raise RateLimited(30)``: a service accepts no calls for 30 s; run this job again after
    that.

    This attempt does not count; ``meta["rate_limited"]`` counts such attempts. In a queue with a
    `RateLimit`, no other job of the same group starts before that time, on any worker.

    :param retry_after: an aware datetime, or a delay by the clock of the database, as a timedelta
        or in seconds.
    :raises InvalidAnswer: the value has another type, is below 0, or is over `MAX_DELAY`.
    """

    def __init__(self, retry_after: When) -> None:
        #: The time in UTC, or the delay.
        self.moment = _checked("RateLimited", retry_after)
        super().__init__(retry_after)

    def __str__(self) -> str:
        return f"the job may run again {_in_words(self.moment)}"


#: The control results that a job may return.
Answer = Snooze | Cancel


def _checked(name: str, when: object) -> datetime | timedelta:
    delay = when
    if isinstance(when, int | float) and not isinstance(when, bool):
        try:
            delay = timedelta(seconds=when)
        except (OverflowError, ValueError):
            raise InvalidAnswer(
                f"{name}({shown(when)}): a delay in seconds is a number from 0 to "
                f"{MAX_DELAY.total_seconds():,.0f}"
            ) from None
    match delay:
        case datetime() if delay.tzinfo is None:
            raise InvalidAnswer(
                f"{name}({delay!r}): the datetime has no time zone: use "
                "datetime.now(timezone.utc), or .astimezone()"
            )
        case datetime():
            try:
                return delay.astimezone(UTC)
            except OverflowError:
                raise InvalidAnswer(
                    f"{name}({delay}): the datetime is outside the years 1 to 9999 in UTC"
                ) from None
        case timedelta() if timedelta() <= delay <= MAX_DELAY:
            return delay
        case timedelta():
            raise InvalidAnswer(
                f"{name}({shown(when)}): a delay must be from 0 to {MAX_DELAY.days:,} days"
            )
        case _:
            raise InvalidAnswer(
                f"{name}({shown(when)}): pass an aware datetime, a timedelta, or seconds"
            )


def _in_words(when: datetime | timedelta) -> str:
    if isinstance(when, timedelta):
        return f"in {when.total_seconds():g} s"
    return f"at {when.isoformat()}"

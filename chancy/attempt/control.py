"""What a job may answer instead of a result: `Snooze`, `Cancel` and `Retry`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from chancy.errors import InvalidAnswer
from chancy.text import shown

#: The longest delay that may be asked for: Postgres and Python both end their calendars later.
MAX_DELAY = timedelta(days=365_000)

#: A moment, or how long from now: an aware datetime, a timedelta, or seconds.
When: TypeAlias = "datetime | timedelta | float"


@dataclass(frozen=True, slots=True)
class Snooze:
    """``return Snooze(60)``: run this job again then. This attempt does not count.

    The job waits as ``scheduled``, also when it was to run only once. How often it was put off
    stands in ``meta["snoozes"]``; there is no limit to it.

    :param until: an aware datetime, where times gone by mean at once; or how long from now, by
        the clock of the database, as a timedelta or in seconds.
    :raises InvalidAnswer: it is none of these, is below 0, or is over `MAX_DELAY`.
    """

    until: When

    @property
    def moment(self) -> datetime | timedelta:
        """The moment in UTC, or the delay."""
        return _moment("Snooze", self.until)

    def __post_init__(self) -> None:
        _moment("Snooze", self.until)


@dataclass(frozen=True, slots=True)
class Cancel:
    """``return Cancel("the order is gone")``: the job ends here as ``cancelled``.

    :param reason: stored with the job's errors.
    :raises InvalidAnswer: the reason is not text.
    """

    reason: str = "the job cancelled itself"

    def __post_init__(self) -> None:
        reason: object = self.reason
        if not isinstance(reason, str):
            raise InvalidAnswer(f"Cancel({shown(reason)}): the reason is not text")


class Retry(Exception):
    """``raise Retry(30)``: this attempt has failed, and the next one is to begin then.

    It counts like any other failure, stands in the job's errors, and fails the job for good if no
    attempts are left. The moment goes before what the retry plugin would choose, and needs no
    plugin. ``raise Retry(30) from error`` keeps the error that is behind it.

    :param at: an aware datetime, where times gone by mean at once; or how long from now, by the
        clock of the database, as a timedelta or in seconds.
    :param reason: stored with the failure.
    :raises InvalidAnswer: the moment is none of these, is below 0, or is over `MAX_DELAY`.
    """

    def __init__(self, at: When, reason: str = "") -> None:
        #: The moment in UTC, or the delay.
        self.moment = _moment("Retry", at)
        super().__init__(at, reason)
        self._reason = reason

    def __str__(self) -> str:
        return str(self._reason) or f"the job asked to be run again {_in_words(self.moment)}"


#: What a job may return instead of a result.
Answer = Snooze | Cancel


def _moment(name: str, when: object) -> datetime | timedelta:
    delay = when
    if isinstance(when, int | float) and not isinstance(when, bool):
        try:
            delay = timedelta(seconds=when)
        except (OverflowError, ValueError):
            raise InvalidAnswer(
                f"{name}({shown(when)}): this is not a number of seconds up to "
                f"{MAX_DELAY.total_seconds():,.0f}"
            ) from None
    match delay:
        case datetime() if delay.tzinfo is None:
            raise InvalidAnswer(
                f"{name}({delay!r}): it has no time zone, so it names no moment: use "
                "datetime.now(timezone.utc), or .astimezone()"
            )
        case datetime():
            try:
                return delay.astimezone(UTC)
            except OverflowError:
                raise InvalidAnswer(
                    f"{name}({delay}): it is outside of the years 1 to 9999 in UTC"
                ) from None
        case timedelta() if timedelta() <= delay <= MAX_DELAY:
            return delay
        case timedelta():
            raise InvalidAnswer(
                f"{name}({shown(when)}): a delay is from 0 to {MAX_DELAY.days:,} days"
            )
        case _:
            raise InvalidAnswer(
                f"{name}({shown(when)}): say when by an aware datetime, a timedelta, or seconds"
            )


def _in_words(moment: datetime | timedelta) -> str:
    if isinstance(moment, timedelta):
        return f"in {moment.total_seconds():g} s"
    return f"at {moment.isoformat()}"

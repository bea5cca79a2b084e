"""What a job may answer instead of a result."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from chancy import Cancel, InvalidAnswer, Retry, Snooze
from chancy.attempt.control import MAX_DELAY

AT = datetime(2030, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize("make", [Snooze, Retry])
@pytest.mark.parametrize(
    ("when", "moment"),
    [
        (60, timedelta(minutes=1)),
        (0.5, timedelta(milliseconds=500)),
        (0, timedelta()),
        (timedelta(hours=1), timedelta(hours=1)),
        (MAX_DELAY, MAX_DELAY),
        (AT, datetime(2030, 1, 1, 10, tzinfo=UTC)),
        (datetime(1990, 1, 1, tzinfo=UTC), datetime(1990, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_is_accepted_in_every_form(make: Any, when: Any, moment: object) -> None:
    assert make(when).moment == moment


@pytest.mark.parametrize("make", [Snooze, Retry])
@pytest.mark.parametrize(
    ("when", "why"),
    [
        (-1, "from 0 to 365,000 days"),
        (timedelta(microseconds=-1), "from 0 to 365,000 days"),
        (MAX_DELAY + timedelta(microseconds=1), "from 0 to 365,000 days"),
        (float("nan"), "a delay in seconds is a number"),
        (float("inf"), "a delay in seconds is a number"),
        (10**40, "a delay in seconds is a number"),
        (datetime(2030, 1, 1), "no time zone"),  # noqa: DTZ001  that is the point
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "outside the years"),
        ("5 minutes", "an aware datetime, a timedelta, or seconds"),
        (None, "an aware datetime, a timedelta, or seconds"),
        (True, "an aware datetime, a timedelta, or seconds"),
    ],
)
def test_invalid_datetimes_are_refused_at_construction(make: Any, when: Any, why: str) -> None:
    with pytest.raises(InvalidAnswer, match=why) as raised:
        make(when)
    assert str(raised.value).startswith(make.__name__)


def test_a_reason_is_text() -> None:
    assert Cancel("gone").reason == "gone"
    with pytest.raises(InvalidAnswer, match="must be a string"):
        Cancel(4)  # type: ignore[arg-type]


def test_a_retry_gives_the_reason_or_the_time() -> None:
    assert str(Retry(30, "the service is busy")) == "the service is busy"
    assert str(Retry(30)) == "the job requested a retry in 30 s"
    assert str(Retry(AT)) == "the job requested a retry at 2030-01-01T10:00:00+00:00"


def test_a_retry_can_be_handed_to_another_process() -> None:
    copy = pickle.loads(pickle.dumps(Retry(30, "busy")))
    assert (copy.moment, str(copy)) == (timedelta(seconds=30), "busy")

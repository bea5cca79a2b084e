"""Ticks of cron expressions, most of all where the clock on the wall is set."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from chancy import schedule as module
from chancy.errors import ConfigurationError
from chancy.schedule import Schedule, jitter_s

MINUTE = timedelta(minutes=1)

# Zone, what happens there, expression, the moment behind which to look, and the ticks. The times
# are those of the clock on the wall, with their offset.
SPRING = [
    ("30 2 * * *", "28T12:00+01:00", "29T03:00+02:00 30T02:30+02:00 31T02:30+02:00"),
    ("0 2,3 * * *", "28T12:00+01:00", "29T03:00+02:00 30T02:00+02:00 30T03:00+02:00"),
    ("*/20 2 * * *", "28T12:00+01:00", "29T03:00+02:00 30T02:00+02:00 30T02:20+02:00"),
    ("30 1-4 * * *", "29T01:00+01:00", "29T01:30+01:00 29T03:00+02:00 29T03:30+02:00"),
    ("0 */2 * * *", "28T23:00+01:00", "29T00:00+01:00 29T03:00+02:00 29T04:00+02:00"),
    ("15 2 * * * 30", "28T12:00+01:00", "29T03:00+02:00 30T02:15:30+02:00"),
    ("@daily", "28T12:00+01:00", "29T00:00+01:00 30T00:00+02:00"),
    ("@hourly", "29T00:30+01:00", "29T01:00+01:00 29T03:00+02:00 29T04:00+02:00"),
    ("5 * * * *", "29T00:30+01:00", "29T01:05+01:00 29T03:05+02:00 29T04:05+02:00"),
    ("*/15 * * * *", "29T01:30+01:00", "29T01:45+01:00 29T03:00+02:00 29T03:15+02:00"),
    ("*/15 0-23 * * *", "29T01:30+01:00", "29T01:45+01:00 29T03:00+02:00 29T03:15+02:00"),
    ("59 * * * * */30", "29T01:58+01:00", "29T01:59+01:00 29T01:59:30+01:00 29T03:59+02:00"),
]
AUTUMN = [
    ("30 2 * * *", "24T12:00+02:00", "25T02:30+02:00 26T02:30+01:00 27T02:30+01:00"),
    ("30 2 * * *", "25T02:10+01:00", "26T02:30+01:00 27T02:30+01:00"),
    ("0 2 * * *", "25T02:00+02:00", "26T02:00+01:00"),
    ("0 3 * * *", "24T12:00+02:00", "25T03:00+01:00 26T03:00+01:00"),
    ("*/30 2 * * *", "24T12:00+02:00", "25T02:00+02:00 25T02:30+02:00 26T02:00+01:00"),
    ("30 1-3 * * *", "25T01:00+02:00", "25T01:30+02:00 25T02:30+02:00 25T03:30+01:00"),
    ("0 */2 * * *", "24T23:00+02:00", "25T00:00+02:00 25T02:00+02:00 25T04:00+01:00"),
    ("@hourly", "25T01:30+02:00", "25T02:00+02:00 25T02:00+01:00 25T03:00+01:00"),
    ("*/30 * * * *", "25T02:00+02:00", "25T02:30+02:00 25T02:00+01:00 25T02:30+01:00"),
    ("*/30 */1 * * *", "25T02:00+02:00", "25T02:30+02:00 25T02:00+01:00 25T02:30+01:00"),
    ("40 * * * *", "25T02:50+02:00", "25T02:40+01:00 25T03:40+01:00"),
]
ELSEWHERE = [
    # Half an hour.
    ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00+10:30",
     "2026-10-04T02:30+11:00 2026-10-05T02:15+11:00"),
    ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04T12:00+11:00",
     "2026-04-05T01:45+11:00 2026-04-06T01:45+10:30"),
    ("Australia/Lord_Howe", "*/15 * * * *", "2026-10-04T01:30+10:30",
     "2026-10-04T01:45+10:30 2026-10-04T02:30+11:00 2026-10-04T02:45+11:00"),
    ("Australia/Lord_Howe", "*/15 * * * *", "2026-04-05T01:45+11:00",
     "2026-04-05T01:30+10:30 2026-04-05T01:45+10:30 2026-04-05T02:00+10:30"),
    ("Australia/Lord_Howe", "@hourly", "2026-10-04T00:30+10:30",
     "2026-10-04T01:00+10:30 2026-10-04T03:00+11:00"),
    # At midnight.
    ("America/Sao_Paulo", "@daily", "2018-11-03T12:00-03:00",
     "2018-11-04T01:00-02:00 2018-11-05T00:00-02:00"),
    ("America/Sao_Paulo", "30 23 * * *", "2018-02-17T12:00-02:00",
     "2018-02-17T23:30-02:00 2018-02-18T23:30-03:00"),
    ("America/Sao_Paulo", "@daily", "2018-02-17T12:00-02:00",
     "2018-02-18T00:00-03:00 2018-02-19T00:00-03:00"),
    ("America/Sao_Paulo", "*/30 * * * 6", "2018-02-17T23:00-02:00",
     "2018-02-17T23:30-02:00 2018-02-17T23:00-03:00 2018-02-17T23:30-03:00 "
     "2018-02-24T00:00-03:00"),
    # The clock is set back on the one day that matches; a year later the offset is the same.
    ("America/Sao_Paulo", "30 * 15 2 *", "2014-02-15T23:00-02:00",
     "2014-02-15T23:30-02:00 2014-02-15T23:30-03:00 2015-02-15T00:30-02:00"),
    ("Africa/Cairo", "15 0 * * fri", "2026-04-23T12:00+02:00",
     "2026-04-24T01:00+03:00 2026-05-01T00:15+03:00"),
    ("Africa/Cairo", "0 23 * * *", "2026-10-29T12:00+03:00",
     "2026-10-29T23:00+03:00 2026-10-30T23:00+02:00"),
    # As before, and daylight saving is back within 30 days.
    ("Asia/Hebron", "30 * 31 7 *", "2011-07-31T23:00+03:00",
     "2011-07-31T23:30+03:00 2011-07-31T23:30+02:00 2012-07-31T00:30+03:00"),
    # Two hours; daylight saving counted backwards; off for a month.
    ("Antarctica/Troll", "30 1,2 * * *", "2026-03-28T12:00+00:00",
     "2026-03-29T03:00+02:00 2026-03-30T01:30+02:00"),
    ("Europe/Dublin", "30 1 * * *", "2026-10-24T12:00+01:00",
     "2026-10-25T01:30+01:00 2026-10-26T01:30+00:00"),
    ("Africa/Casablanca", "30 2 * * *", "2026-02-14T12:00+01:00",
     "2026-02-15T02:30+01:00 2026-02-16T02:30+00:00"),
    # Changed for good.
    ("Europe/Moscow", "30 1 * * *", "2014-10-25T12:00+04:00",
     "2014-10-26T01:30+04:00 2014-10-27T01:30+03:00"),
    ("Europe/Moscow", "30 * * * *", "2014-10-26T01:00+04:00",
     "2014-10-26T01:30+04:00 2014-10-26T01:30+03:00 2014-10-26T02:30+03:00"),
    ("Europe/Istanbul", "30 3 * * *", "2016-10-29T12:00+03:00",
     "2016-10-30T03:30+03:00 2016-10-31T03:30+03:00"),
    # A day that was left out.
    ("Pacific/Apia", "0 9,17 * * *", "2011-12-29T12:00-10:00",
     "2011-12-29T17:00-10:00 2011-12-31T00:00+14:00 2011-12-31T09:00+14:00"),
    ("Pacific/Apia", "@hourly", "2011-12-29T22:30-10:00",
     "2011-12-29T23:00-10:00 2011-12-31T00:00+14:00 2011-12-31T01:00+14:00"),
    # Nothing happens.
    ("UTC", "30 2 * * *", "2026-03-28T12:00+00:00",
     "2026-03-29T02:30+00:00 2026-03-30T02:30+00:00"),
    ("UTC", "0 0 29 2 *", "2096-03-01T00:00+00:00", "2104-02-29T00:00+00:00"),
    ("UTC", "0 12 13 * fri", "2026-02-06T12:00+00:00",
     "2026-02-13T12:00+00:00 2026-02-20T12:00+00:00"),
    ("UTC", "0 12 l * *", "2026-02-06T12:00+00:00", "2026-02-28T12:00+00:00"),
    ("UTC", "0 12 * * fri#1", "2026-02-06T12:00+00:00", "2026-03-06T12:00+00:00"),
    ("UTC", "0 22-1 * * sat-mon", "2026-02-08T23:00+00:00",
     "2026-02-09T00:00+00:00 2026-02-09T01:00+00:00 2026-02-09T22:00+00:00"),
    ("Asia/Kathmandu", "0 6 * * *", "2026-02-08T23:00+00:00", "2026-02-09T06:00+05:45"),
]  # fmt: skip


IN_BERLIN = [
    ("Europe/Berlin", expression, month + start, " ".join(month + one for one in ticks.split()))
    for month, cases in (("2026-03-", SPRING), ("2026-10-", AUTUMN))
    for expression, start, ticks in cases
]


@pytest.mark.parametrize(("zone", "expression", "start", "ticks"), IN_BERLIN + ELSEWHERE)
def test_ticks_where_the_clock_is_set(zone: str, expression: str, start: str, ticks: str) -> None:
    schedule = Schedule(expression, zone)
    expected = ticks.split()
    moment = datetime.fromisoformat(start)
    found = schedule.between(moment, moment + timedelta(days=4_000), len(expected))
    shown = [tick.astimezone(ZoneInfo(zone)).isoformat() for tick in found]
    assert [re.sub(r"(T\d\d:\d\d):00(?=[+-])", r"\1", one) for one in shown] == expected
    for tick in found:
        assert tick.tzinfo is UTC
        assert schedule.next_after(moment) == tick
        moment = tick


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("0 0 31 2 *", "never due"),
        ("0 0 30,31 2 *", "never due"),
        ("0 0 31 4 fri#5", "never due"),
        ("@reboot", "no boot"),
        ("H * * * *", "'h' stands for a random time"),
        ("R(0-10)/2 * * * *", "stands for a random time"),
        ("0 0 1 1 * 0 2030", "run_at"),
        ("0 3-3 * * *", "write '3'"),
        ("*/61 * * * *", "the step of '*/61' is too large: the field has 60 values"),
        ("0 9-17,*/48 * * *", "the step of '*/48'"),
        ("61 * * * *", "out of range; write the five fields"),
        ("* * * *", "write the five fields"),
        ("@sometimes", "@hourly, @daily"),
        ("", "write the five fields"),
        ("* * * * * 2030", "out of range"),
        ("0," * 200 + "0 * * * *", "may have at most 256"),
        (None, "not a string"),
    ],
)
def test_refusals_give_the_reason(expression: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        Schedule(expression)


@pytest.mark.parametrize(
    ("zone", "why"),
    [
        ("Europe/Berlim", "did you mean 'Europe/Berlin'?"),
        ("europe/berlin", "did you mean 'Europe/Berlin'?"),
        ("localtime", "'localtime' is not a time zone"),
        ("right/Europe/Berlin", "not a time zone"),
        ("Europe", "not a time zone"),
        ("../etc/passwd", "not a time zone"),
        ("a\0b", "not a time zone"),
        ("", "use a name such as 'Europe/Berlin' or 'UTC'"),
        (None, "None is not a time zone"),
    ],
)
def test_unknown_zones_are_refused(zone: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        Schedule("@daily", zone)


def test_aliases_mean_what_they_say() -> None:
    start = datetime(2026, 5, 13, 12, 30, tzinfo=UTC)  # a Wednesday
    for alias, tick in (
        ("@hourly", "2026-05-13T13:00"),
        ("@daily", "2026-05-14T00:00"),
        ("@midnight", "2026-05-14T00:00"),
        ("@weekly", "2026-05-17T00:00"),
        ("@monthly", "2026-06-01T00:00"),
        ("@yearly", "2027-01-01T00:00"),
        (" @Annually ", "2027-01-01T00:00"),
    ):
        assert Schedule(alias).next_after(start).isoformat() == f"{tick}:00+00:00"


def test_seconds_stand_last() -> None:
    start = datetime(2026, 5, 13, 12, 0, 5, 250, tzinfo=UTC)
    found = Schedule("* * * * * 5,*/20").between(start, start + MINUTE, 10)
    assert [tick.second for tick in found] == [20, 40, 0, 5]
    assert found[-1] == start.replace(minute=1, microsecond=0)


def test_a_schedule_is_a_value() -> None:
    schedule = Schedule("0  3 * *   mon", "Europe/Berlin")
    assert schedule == Schedule("0 3 * * mon", "Europe/Berlin") != Schedule("0 3 * * mon")
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert repr(schedule) == "Schedule(expression='0 3 * * mon', zone='Europe/Berlin')"
    assert len({schedule, Schedule("0 3 * * mon", "Europe/Berlin")}) == 1


def test_datetimes_must_be_aware_and_in_range() -> None:
    schedule = Schedule("@daily")
    with pytest.raises(ValueError, match="pass an aware datetime"):
        schedule.next_after(datetime.fromisoformat("2026-01-01"))
    with pytest.raises(ValueError, match="1970 to 2999"):
        schedule.next_after(datetime.max.replace(tzinfo=UTC))
    berlin = datetime(2026, 1, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    assert schedule.next_after(berlin) == datetime(2026, 1, 2, tzinfo=UTC)


def test_a_distant_end_costs_at_most_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    walk = module._walk

    def counting(expression: str, after: datetime) -> Iterator[datetime]:
        nonlocal made
        for match in walk(expression, after).all_next(datetime):
            made += 1
            yield match

    class Counting:
        def __init__(self, expression: str, after: datetime) -> None:
            self.expression, self.after = expression, after

        def all_next(self, _: object) -> Iterator[datetime]:
            return counting(self.expression, self.after)

    start, end = datetime(1970, 1, 2, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)
    for text in ("* * * * * *", "* 2 * * * *"):
        schedule = Schedule(text, "Europe/Berlin")
        with monkeypatch.context() as patch:
            patch.setattr(module, "_walk", Counting)
            assert len(schedule.between(start, end, 50)) == 50
            assert schedule.between(end, start, 50) == []
            assert schedule.between(start, end, 0) == []
    assert made <= 2 * 54


def test_jitter_is_the_same_for_each_leader_and_spread_evenly() -> None:
    tick = datetime(2026, 5, 13, 12, tzinfo=UTC)
    # Written down, since processes of different versions must agree too.
    assert jitter_s("report", tick, 60) == pytest.approx(0.816403397510339, abs=1e-12)
    assert jitter_s("report", tick.astimezone(ZoneInfo("Europe/Berlin")), 60) == jitter_s(
        "report", tick, 60
    )
    assert jitter_s("report", tick, 0) == 0
    drawn = [jitter_s("report", tick + n * MINUTE, 60) for n in range(1_000)]
    assert all(0 <= one < 60 for one in drawn)
    tenths = [sum(n * 6 <= one < n * 6 + 6 for one in drawn) for n in range(10)]
    assert min(tenths) > 50
    assert len({jitter_s(name, tick, 60) for name in ("a", "b", "\ud800")}) == 3
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(ConfigurationError, match="jitter"):
            jitter_s("report", tick, wrong)

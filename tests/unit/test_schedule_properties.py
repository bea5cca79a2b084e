"""What holds for the ticks of any expression, in any zone, at any time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chancy.errors import ConfigurationError
from chancy.schedule import Schedule

MINUTE = timedelta(minutes=1)

ZONES = (
    "UTC", "Europe/Berlin", "Europe/Dublin", "America/New_York", "America/St_Johns",
    "America/Sao_Paulo", "America/Santiago", "America/Caracas", "Australia/Lord_Howe",
    "Australia/Sydney", "Pacific/Apia", "Pacific/Chatham", "Asia/Beirut", "Asia/Gaza",
    "Asia/Kathmandu", "Africa/Cairo", "Africa/Casablanca", "Antarctica/Troll",
)  # fmt: skip
RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


@dataclass(frozen=True)
class Expression:
    """An expression with what it means, without the help of croniter."""

    text: str
    allowed: tuple[frozenset[int] | None, ...]

    def matches(self, wall: datetime) -> bool:
        shown = (wall.minute, wall.hour, wall.day, wall.month, wall.isoweekday() % 7)
        minute, hour, day, month, weekday = (
            allowed is None or value in allowed
            for value, allowed in zip(shown, self.allowed, strict=True)
        )
        if self.allowed[2] is not None and self.allowed[4] is not None:
            return minute and hour and month and (day or weekday)
        return minute and hour and month and day and weekday

    @property
    def every_hour(self) -> bool:
        return self.allowed[1] is None


@st.composite
def part(draw: st.DrawFn, index: int) -> tuple[str, frozenset[int] | None]:
    low, high = RANGES[index]
    match draw(st.sampled_from(["all", "all", "list", "range", "step"])):
        case "all":
            return "*", None
        case "list":
            values = draw(st.sets(st.integers(low, high), min_size=1, max_size=3))
            return ",".join(map(str, sorted(values))), frozenset(values)
        case "range":
            first = draw(st.integers(low, high - 2))
            last = draw(st.integers(first + 1, high - 1))
            return f"{first}-{last}", frozenset(range(first, last + 1))
        case _:
            step = draw(st.integers(2, max(2, (high - low) // 2)))
            return f"*/{step}", frozenset(range(low, high + 1, step))


@st.composite
def expressions(draw: st.DrawFn, dates: bool = True) -> Expression:
    parts = [draw(part(index)) if dates or index < 2 else ("*", None) for index in range(5)]
    if parts[2][1] is not None or draw(st.booleans()):
        parts[3] = ("*", None)  # 31 2 is never due
    return Expression(" ".join(text for text, _ in parts), tuple(allowed for _, allowed in parts))


moments = st.datetimes(
    datetime.fromisoformat("1981-01-01"),
    datetime.fromisoformat("2060-01-01"),
    timezones=st.just(UTC),
)


@st.composite
def near_changes(draw: st.DrawFn, zone: str) -> datetime:
    """A whole minute, most often within 30 hours before an offset changes."""
    start = draw(moments).replace(second=0, microsecond=0)
    local = ZoneInfo(zone)
    offset = start.astimezone(local).utcoffset()
    for days in range(400):
        day = start + timedelta(days=days)
        if day.astimezone(local).utcoffset() != offset:
            return day - timedelta(minutes=draw(st.integers(24 * 60, 30 * 60)))
    return start


def scanned(expression: Expression, zone: str, after: datetime, until: datetime) -> list[datetime]:
    """The rules, minute by minute."""
    local = ZoneInfo(zone)
    ticks = []
    moment, before = after, after.astimezone(local)
    while moment < until:
        moment += MINUTE
        wall = moment.astimezone(local)
        clock = wall.replace(tzinfo=None)
        if expression.every_hour:
            due = expression.matches(clock)
        else:
            due = wall.fold == 0 and expression.matches(clock)
            missing = before.replace(tzinfo=None) + MINUTE
            while missing < clock:
                due = due or expression.matches(missing)
                missing += MINUTE
        if due:
            ticks.append(moment)
        before = wall
    return ticks


@pytest.mark.parametrize("examples", [15, pytest.param(150, marks=pytest.mark.chaos)])
def test_ticks_are_those_that_a_scan_of_the_wall_clock_finds(examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(data=st.data())
    def compare(data: st.DataObject) -> None:
        zone = data.draw(st.sampled_from(ZONES))
        expression = data.draw(expressions())
        after = data.draw(near_changes(zone))
        until = after + timedelta(hours=36)
        schedule = Schedule(expression.text, zone)
        assert schedule.between(after, until, 10_000) == scanned(expression, zone, after, until)

    compare()


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_adjacent_windows_lose_and_double_no_tick(data: st.DataObject) -> None:
    zone = data.draw(st.sampled_from(ZONES))
    schedule = Schedule(data.draw(expressions(dates=False)).text, zone)
    start = data.draw(near_changes(zone))
    seconds = st.floats(0, 3 * 86_400).map(lambda value: timedelta(seconds=value))
    first, second, third = sorted(start + data.draw(seconds) for _ in range(3))
    whole = schedule.between(first, third, 10_000)
    halves = [schedule.between(first, second, 10_000), schedule.between(second, third, 10_000)]
    assert whole == halves[0] + halves[1]
    assert whole == sorted(set(whole))
    assert all(first < tick <= third for tick in whole)
    assert whole[:3] == schedule.between(first, third, 3)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_clock_that_goes_back_repeats_no_tick(data: st.DataObject) -> None:
    zone = data.draw(st.sampled_from(ZONES))
    schedule = Schedule(data.draw(expressions(dates=False)).text, zone)
    last = start = now = data.draw(near_changes(zone))
    fired: list[datetime] = []
    steps = st.lists(st.integers(-3_600, 7_200), min_size=1, max_size=20)
    for step in data.draw(steps):
        now += timedelta(seconds=step)
        found = schedule.between(last, now, 1_000)
        fired += found
        last = max(found, default=last)
    assert fired == schedule.between(start, last, 100_000)


@given(st.text(max_size=40) | st.text("0123456789*/,-lwh#? ", max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_text_is_a_schedule_or_refused(text: str) -> None:
    try:
        tick = Schedule(text).next_after(datetime(2026, 1, 1, tzinfo=UTC))
    except ConfigurationError:
        return
    assert tick.tzinfo is UTC

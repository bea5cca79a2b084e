"""What becomes of ticks that nobody fired in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chancy.errors import ConfigurationError
from chancy.plugins.cron.misfire import MAX_COUNTED, DueTicks, Misfire, due
from chancy.schedule import Schedule

HOURLY = Schedule("@hourly")
START = datetime(2026, 5, 13, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def hours(*numbers: int) -> list[datetime]:
    return [START + number * HOUR for number in numbers]


@pytest.mark.parametrize(
    ("policy", "late", "found"),
    [
        # Nothing is due yet.
        (Misfire.SKIP, timedelta(minutes=59), DueTicks([], 0, START)),
        (Misfire.ONE, timedelta(minutes=59), DueTicks([], 0, START)),
        (Misfire.ALL, timedelta(minutes=59), DueTicks([], 0, START)),
        # The clock was set back.
        (Misfire.ALL, -3 * HOUR, DueTicks([], 0, START)),
        # In time: all policies are the same.
        (Misfire.SKIP, HOUR, DueTicks(hours(1), 0, START + HOUR)),
        (Misfire.ONE, HOUR, DueTicks(hours(1), 0, START + HOUR)),
        (Misfire.ALL, HOUR, DueTicks(hours(1), 0, START + HOUR)),
        # Within the grace of 60 s, at its end, and beyond.
        (Misfire.SKIP, 3 * HOUR + timedelta(seconds=60), DueTicks(hours(3), 2, START + 3 * HOUR)),
        (Misfire.SKIP, 3 * HOUR + timedelta(seconds=61), DueTicks([], 3, START + 3 * HOUR)),
        (Misfire.ONE, 3.9 * HOUR, DueTicks(hours(3), 2, START + 3 * HOUR)),
        (Misfire.ALL, 3.9 * HOUR, DueTicks(hours(1, 2, 3), 0, START + 3 * HOUR)),
        (Misfire.ALL, 4 * HOUR, DueTicks(hours(1, 2, 3, 4), 0, START + 4 * HOUR)),
        # Over the bound of 4.
        (Misfire.ALL, 5 * HOUR, DueTicks(hours(2, 3, 4, 5), 1, START + 5 * HOUR)),
        (Misfire.ALL, 500 * HOUR, DueTicks(hours(497, 498, 499, 500), 496, START + 500 * HOUR)),
    ],
)
def test_policies(policy: Misfire, late: timedelta, found: DueTicks) -> None:
    assert due(HOURLY, START, START + late, policy, backfill_limit=4) == found


def test_the_next_look_begins_behind_the_newest_tick() -> None:
    first = due(HOURLY, START, START + 2.5 * HOUR, Misfire.SKIP)
    assert first.fire == []
    assert due(HOURLY, first.last, START + 2.6 * HOUR, Misfire.SKIP) == DueTicks([], 0, first.last)
    assert due(HOURLY, first.last, START + 3 * HOUR, Misfire.SKIP).fire == hours(3)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("* * * * * *", 1),
        ("*/7 * * * *", 3),
        ("0 3 * * *", 100),
        ("0 0 1 1 *", 3),
        ("* * 2 1 * *", 100),
        ("* 0 * * * 0,1,2", 3),
    ],
)
def test_years_without_ticks_cost_at_most_the_bounds(text: str, limit: int) -> None:
    asked: list[int] = []

    class Watched(Schedule):
        def between(self, after: datetime, until: datetime, limit: int) -> list[datetime]:
            found = super().between(after, until, limit)
            asked.append(len(found))
            return found

    schedule = Watched(text)
    now = START + timedelta(days=3_000, seconds=7)
    found = due(schedule, START, now, Misfire.ALL, backfill_limit=limit)
    assert max(asked) <= max(2 * limit + 1, MAX_COUNTED)
    assert len(asked) < 30
    assert len(found.fire) == min(limit, len(schedule.between(START, now, limit)))
    assert schedule.between(found.fire[0] - timedelta(seconds=1), now, 1_000) == found.fire
    assert found.last == found.fire[-1]
    everything = schedule.between(START, now, MAX_COUNTED + limit)
    assert found.dropped == min(MAX_COUNTED, len(everything) - len(found.fire))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_newest_are_fired_and_the_others_counted(data: st.DataObject) -> None:
    minutes = data.draw(st.sets(st.integers(0, 59), min_size=1, max_size=9).map(sorted))
    schedule = Schedule(f"{','.join(map(str, minutes))} * * * *")
    now = START + timedelta(seconds=data.draw(st.integers(0, 40 * 3_600)))
    limit = data.draw(st.integers(1, 40))
    everything = schedule.between(START, now, 10_000)
    found = due(schedule, START, now, Misfire.ALL, backfill_limit=limit)
    assert found.fire == everything[-limit:]
    assert found.dropped == len(everything) - len(found.fire)


@pytest.mark.parametrize("wrong", [0, 1_001])
def test_the_bound_is_bounded(wrong: int) -> None:
    with pytest.raises(ConfigurationError, match=f"backfill_limit={wrong} .* from 1 to 1,000"):
        due(HOURLY, START, START, Misfire.ALL, backfill_limit=wrong)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_the_grace_is_a_number_of_seconds(wrong: float) -> None:
    with pytest.raises(ConfigurationError, match=f"grace_s={wrong}"):
        due(HOURLY, START, START, Misfire.SKIP, grace_s=wrong)

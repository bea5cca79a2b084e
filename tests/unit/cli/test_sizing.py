"""Sizes for a planned load."""

from __future__ import annotations

import pytest

from chancy.cli.sizing import Load, describe
from chancy.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "rate", "duration_s", "arguments"),
    [
        ("1500/s 40ms", 1_500.0, 0.04, 200.0),
        ("40ms 1,500/s", 1_500.0, 0.04, 200.0),
        ("100M/day 0.2s 2KB", 1_157.407, 0.2, 2_000.0),
        ("6k/min 1min 0B", 100.0, 60.0, 0.0),
        ("36/h 2h", 0.01, 7_200.0, 200.0),
    ],
)
def test_a_plan_is_read(text: str, rate: float, duration_s: float, arguments: float) -> None:
    load = Load.parse(text)
    assert load.rate == pytest.approx(rate)
    assert (load.duration_s, load.arguments) == (duration_s, arguments)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "duration and rate is missing"),
        ("1500/s", "duration is missing"),
        ("40ms", "rate is missing"),
        ("1500 40ms", "'1500' in a plan"),
        ("1500/s 40ms 2/s", "one rate, not two"),
        ("0/s 40ms", "rate=0"),
        ("1/s 2days", "'2days' in a plan"),
        ("1/s 100h", "duration=360000.0"),
        ("1/s 1s 2MB", "size=2000000.0"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        Load.parse(text)


def _described(text: str) -> dict[str, tuple[str, str]]:
    return {what: (size, why) for what, size, why in describe(Load.parse(text))}


def test_sizes_follow_from_the_load() -> None:
    rows = _described("100M/day 200ms 1KB")
    assert rows["running at a time"][0] == "695"  # 1,157.4 a second, times 3, for 0.2 s
    assert rows["load"][1].startswith("100 million jobs a day")
    assert rows["write-ahead log"][0] == "420 GB a day"  # 4,200 B a job
    assert rows["history"][0] == "1.22 TB"  # 1,530 B a job, for 8 days
    assert "in partitions by the hour" in rows["history"][1]
    small = _described("1/min 1s")
    assert small["running at a time"][0] == "1"
    assert small["worker processes"][0] == "2, concurrency 1"
    assert "in partitions by the day" in small["history"][1]

"""How numbers of waiting jobs, and their waits, are shown."""

from __future__ import annotations

import pytest

from chancy.app.backlog import Backlog
from chancy.text import elapsed


@pytest.mark.parametrize(
    ("pending", "shown"), [(0, "0"), (9_999, "9,999"), (10_000, "10,000"), (10_001, "10,000+")]
)
def test_a_truncated_count_is_marked(pending: int, shown: str) -> None:
    assert Backlog(pending=pending, cap=10_000, oldest_s=None).shown == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 ms"),
        (0.0801, "80 ms"),
        (0.9996, "1.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (599, "599 s"),
        (600, "10 min"),
        (7_200, "2.0 h"),
        (172_800, "2.0 days"),
    ],
)
def test_durations_for_people(seconds: float, shown: str) -> None:
    assert elapsed(seconds) == shown

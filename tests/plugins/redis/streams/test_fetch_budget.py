"""How many events a round trip asks for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chancy.plugins.redis.streams.group.fetch_budget import FetchBudget

MIB = 1024 * 1024


def lane(mean: float) -> Any:
    return SimpleNamespace(room=1_000, more=True, closing=False, mean=mean)


@pytest.mark.parametrize(
    ("means", "counts"),
    [
        ([MIB, MIB], [8, 0]),
        ([9 * MIB, 1024], [1, 0]),
        ([9 * MIB, 9 * MIB, 1.0], [1, 0, 0]),
        ([1024, 9 * MIB], [1_000, 0]),
    ],
)
def test_one_event_at_least_and_never_less_than_none(means: list[float], counts: list[int]) -> None:
    assert FetchBudget(5.0).share([lane(mean) for mean in means]) == counts

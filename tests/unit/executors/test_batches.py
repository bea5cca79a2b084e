"""How the outcome of a call of a batch function becomes those of its jobs."""

from __future__ import annotations

import pytest

from chancy.attempt.outcome import Raised, Returned
from chancy.executors.batches import split


@pytest.mark.parametrize("result", ['{"a": 1, "b": 2}', "[1, 2]", '["ab", "cd"]', "7"])
def test_jobs_fail_if_their_call_returns_no_pairs(result: str) -> None:
    """As a function does that is declared without a batch where it runs."""
    ends = split(Returned(result, 0.5), "shop.pay", [1, 1], 1_000)
    assert len(ends) == 2
    for end in ends:
        assert isinstance(end, Raised)
        assert end.failure.is_a("chancy.errors.InvalidResult")
        assert "shop.pay" in end.failure.message

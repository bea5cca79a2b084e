"""Which attempts of a dead worker may have started."""

from __future__ import annotations

import pytest

from chancy.attempt.start import may_have_started, start_of
from tests.support.claims import claimed


@pytest.mark.parametrize("meta", [None, "{}", "[]", '"x"', "{", '{"started": "another lease"}'])
def test_the_first_crash_counts_for_every_claim(meta: str | None) -> None:
    assert may_have_started(claimed(meta=meta))


@pytest.mark.parametrize(
    ("meta", "started"),
    [
        (None, False),
        ("{}", False),
        ('{"started": "another lease"}', False),
        ("[]", True),
        ("{", True),
    ],
)
def test_a_later_crash_counts_unless_no_start_is_stored(meta: str | None, started: bool) -> None:
    assert may_have_started(claimed(crashes=1, meta=meta)) is started


def test_a_stored_start_counts() -> None:
    claim = claimed(crashes=1)
    assert may_have_started(claim._replace(meta=start_of(claim)))

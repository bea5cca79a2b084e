"""Which bars a run meets, and why one cannot be judged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.bars import BARS, NOT_MEASURED, Bar, judge
from benchmarks.summary import NO_PEER, OWN, NotRead, Reading, read, summaries
from tests.unit.benchmarks.benchmark_run import taken

FOUND = summaries(taken())
WITHOUT_PEERS = [one for one in FOUND if one.system in OWN]


def test_every_bar_finds_its_numbers() -> None:
    assert {one.bar.name: one.reason for one in judge(FOUND) if one.reason} == {}
    assert len({bar.name for bar in BARS}) == len(BARS)


def test_bars_of_other_systems_are_not_judged_without_them() -> None:
    reasons = {one.bar: one.reason for one in judge(WITHOUT_PEERS)}
    for bar, reason in reasons.items():
        needs_peer = bar.over is not None and bar.over.system not in OWN
        assert reason == (NO_PEER if needs_peer else ""), bar.name


def test_a_case_that_did_not_run_is_not_judged() -> None:
    assert {one.reason for one in judge([])} == {NOT_MEASURED}
    assert {one.met for one in judge([])} == {None}


@pytest.mark.parametrize(
    ("sense", "bound", "met"),
    [("at least", 3.0, True), ("at least", 4.1, False), ("at most", 1.9, False)],
)
def test_the_best_peer_is_the_one_that_is_hardest_to_beat(
    sense: str, bound: float, met: bool
) -> None:
    """Of 1.0 and 0.5 the greater one where more is better, and the less where less is."""
    of = Reading(case="end_to_end", figure="50,000 jobs", system="chancy, not kept")
    bar = Bar(
        name="it",
        of=of,
        over=replace(of, system=None),
        sense="at least" if sense == "at least" else "at most",
        bound=bound if sense == "at most" else bound / 1.5,
    )
    (verdict,) = judge(FOUND, [bar])
    assert verdict.measured == (2.0 if sense == "at least" else 4.0)
    assert verdict.met is met


def test_the_place_chooses_of_several_sizes() -> None:
    small = Reading(case="claims", figure="claim of 100,")
    assert read(small, FOUND) == 0.5
    assert read(replace(small, index=1), FOUND) == 0.6
    assert read(replace(small, index=1, detail="p99"), FOUND) == pytest.approx(1.8)


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        (Reading(case="claims", figure="claim of 7"), "claims has 0 figures of chancy like"),
        (Reading(case="claims", figure="claim of 1,", index=2), "has 2 figures of chancy"),
        (Reading(case="claims", figure="claim of 1,", detail="p98"), "has no 'p98'"),
        (Reading(case="beside", figure="drain", detail="/ all"), "has no '/ all'"),
        (Reading(case="drain", figure=".*async", system="saq"), NO_PEER),
    ],
)
def test_missing_items_are_named(reading: Reading, message: str) -> None:
    with pytest.raises(NotRead, match=message):
        read(reading, FOUND)

"""What a run found, as JSON and as tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.bars import Bar, Verdict
from benchmarks.measurement import OTHERS, Measurement, Taken
from benchmarks.report import as_json, as_markdown, bars_table, read
from benchmarks.summary import Reading, summaries
from tests.unit.benchmarks.benchmark_run import HEAD, taken


def _take(figure: str, value: float, *, others: float = 0.0, system: str = "chancy") -> Taken:
    measurement = Measurement(
        figure=figure, unit="jobs/s", value=value, details={OTHERS: others}, system=system
    )
    return Taken(case="drain", round=1, measurement=measurement)


def test_the_median_is_of_the_calm_rounds_and_the_spread_of_all() -> None:
    found = summaries([_take("a", 10), _take("a", 20), _take("a", 99, others=1.5), _take("a", 30)])
    assert [(one.median, one.least, one.most, one.rounds, one.calm) for one in found] == [
        (20, 10, 99, 4, True)
    ]
    assert [one.calm for one in summaries([_take("a", 1, others=2)])] == [False]


def test_two_systems_may_name_a_figure_alike() -> None:
    found = summaries([_take("a", 10), _take("a", 30, system="other")])
    assert [(one.system, one.median) for one in found] == [("chancy", 10), ("other", 30)]


def test_a_ratio_to_what_could_not_run_is_left_out() -> None:
    measurement = Measurement(figure="a", unit="", value=1.0, against={"b": "b", "c": "c"})
    mine = Taken(case="drain", round=1, measurement=measurement)
    (one, _) = summaries([mine, _take("b", 0)])
    assert one.ratios == {}


def test_written_records_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(as_json(HEAD, taken())))
    head, found = read(file)
    assert found == taken()
    assert head.items() >= HEAD.items()


@pytest.mark.parametrize("text", ["[]", '{"format": 2}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"run\.json was not written"):
        read(file)


def test_a_report_names_what_could_not_run_and_missed_bars() -> None:
    text = as_markdown(HEAD, taken())
    assert "| 20,000 async jobs, saq: cannot run: not installed | saq | – | – |" in text
    assert "- graphile-worker: graphile-worker 9.8.7, concurrentJobs=24" in text
    assert "| drop of a day of them, ms | ≤ 100 | 120 | **not met** |" in text
    assert "| drain, not kept / graphile-worker | ≥ 1.3 | 2.00 | met |" in text


def test_bars_of_what_did_not_run_are_counted() -> None:
    some = [one for one in taken() if one.case == "sustained"]
    text = as_markdown(HEAD, some)
    assert text.count("| met |") == 3
    assert text.endswith("more bars are of cases that this run did not measure.")


def test_a_bar_that_is_barely_missed_does_not_show_its_bound() -> None:
    of = Reading(case="claims", figure="claim of 1,")
    bar = Bar(name="claim", of=of, sense="at most", bound=1.5)
    missed = Verdict(bar=bar, measured=1.504, met=False, reason="")
    met = Verdict(bar=bar, measured=1.5, met=True, reason="")
    rows = [row.split(" | ")[2:] for row in bars_table([missed, met])][2:]
    assert rows == [["1.5040", "**not met** |"], ["1.50", "met |"]]

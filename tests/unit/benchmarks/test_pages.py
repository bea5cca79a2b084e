"""The figures of a run in the pages of the documentation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.report import as_json
from benchmarks.summary import summaries
from tests.support.sources import ROOT
from tests.unit.benchmarks.benchmark_run import HEAD, taken


def test_text_between_the_marks_is_replaced() -> None:
    before = f"# A\n\n{pages.BEGIN}\n\nold\n\n{pages.END}\n\nafter\n"
    after = f"# A\n\n{pages.BEGIN}\n\nnew\n\n{pages.END}\n\nafter\n"
    assert pages.written(before, "new") == after
    assert pages.written(after, "new") == after


@pytest.mark.parametrize("text", ["", pages.BEGIN, 2 * (pages.BEGIN + pages.END)])
def test_a_page_without_its_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="there must be one"):
        pages.written(text, "new")


@pytest.mark.parametrize("page", [pages.README, pages.PERFORMANCE, pages.LIMITS])
def test_the_pages_have_their_marks(page: Path) -> None:
    pages.written((ROOT / page).read_text(), "")


def test_the_figures_of_a_run() -> None:
    text = pages.figures(HEAD, summaries(taken()), page=pages.PERFORMANCE)
    assert text.startswith("Medians of 2 rounds on 2 cores (Some CPU) with everything on them,")
    for row in (
        "| drain of 20,000 async no-op jobs, one worker, history kept | 44,100 jobs/s | 0.44 "
        "| pgbench, claim 100 and delete 100: 100,000 jobs/s |",
        "| idle worker, from the call of the push | 1.5 ms, p99 4.5 ms | 1.50 "
        "| insert and notify until heard: 1 ms |",
        "| memory of a client that pushes 1,000,000 jobs in one call | 65 MB at its peak | "
        "| 40 MB before |",
        "| chancy, not kept, `async` queue | 58,800 | 58,800 | 58,800 | 4,000 | 80,000 "
        "| 1.5 / 4.5 | 0.1 | 0.9 |",
        "| chancy, history kept, `process` queue, the default | 29,000 | 29,000 | – | – | – | – "
        "| – | – |",
        "| pgqueuer 6.5.4 | 14,700 | 14,700 | 14,700 | 1,000 | 20,000 | 6 / 18 | 0.4 | 0.9 |",
    ):
        assert row in text.splitlines()
    assert "saq" not in text, "it has no figures"


def test_a_peer_is_shown_with_its_current_version_if_that_is_another_one() -> None:
    head = {**HEAD, "current": {"pgqueuer": "6.5.4", "graphile-worker": "10.0.0"}}
    text = pages.figures(head, summaries(taken()), page=pages.PERFORMANCE)
    assert "| pgqueuer 6.5.4 |" in text
    assert "| graphile-worker 9.8.7 (current: 10.0.0) |" in text
    assert "- graphile-worker 9.8.7 (current: 10.0.0): concurrentJobs=24" in text
    assert "in their current versions, unless the current one is named too, with" in text
    assert "current" not in pages.figures(HEAD, summaries(taken()), page=pages.README)


def _make_pages(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with old figures, in a new directory."""
    monkeypatch.setattr(pages, "ROOT", root)
    for page in (pages.README, pages.PERFORMANCE, pages.LIMITS):
        path = root / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"before\n\n{pages.BEGIN}\n\nold\n\n{pages.END}\n\nafter\n")


def test_the_performance_page_has_the_bars_and_the_plots_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_pages(tmp_path, monkeypatch)
    (tmp_path / pages.IMAGES).mkdir()
    (tmp_path / pages.IMAGES / "throughput.svg").touch()
    file = tmp_path / "run.json"
    file.write_text(json.dumps(as_json(HEAD, taken())))

    assert pages.main([str(file)]) == 0

    readme, performance = (
        (tmp_path / page).read_text() for page in (pages.README, pages.PERFORMANCE)
    )
    for text in (readme, performance):
        assert "old" not in text
        assert text.startswith("before\n")
        assert text.endswith("after\n")
    assert "](docs/images/throughput.svg)" in readme
    assert "](../images/throughput.svg)" in performance
    assert "latency.svg" not in performance, "there is no such file"
    file.write_text(json.dumps(as_json({**HEAD, "commit": "0123456789ab+"}, taken())))
    with pytest.raises(SystemExit):
        pages.main([str(file)])
    assert pages.main([str(file), "--draft"]) == 0
    assert "| drop of a day of them, ms | ≤ 100 | 120 | **not met** |" in performance


def test_of_several_runs_the_first_with_a_case_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_pages(tmp_path, monkeypatch)
    run, long = tmp_path / "run.json", tmp_path / "long.json"
    without = [one for one in taken() if one.case not in ("beside", "sustained", "limits")]
    run.write_text(json.dumps(as_json(HEAD, without)))
    later = {**HEAD, "commit": "ba9876543210", "rounds": 1}
    long.write_text(json.dumps(as_json(later, taken(rounds=1))))
    assert pages.main([str(run), str(long)]) == 0
    text = (tmp_path / pages.PERFORMANCE).read_text()
    assert "Commit 0123456789ab, 2026-01-02." in text
    (others,) = (line for line in text.splitlines() if line.startswith("The figures of"))
    assert set(re.findall("`(.+?)`", others)) == {"beside", "sustained", "limits"}
    assert others.endswith("are of one round,")
    assert "| drain of 20,000 async no-op jobs, one worker, history kept | 44,100 jobs/s" in text
    assert "| drop of a day of them, ms | ≤ 100 | 120 | **not met** |" in text
    text = (tmp_path / pages.LIMITS).read_text()
    assert "One round on 2 cores" in text
    assert "Commit ba9876543210" in text
    assert "The figures of" not in text


def test_a_run_of_limits_alone_writes_the_page_of_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    page = tmp_path / pages.LIMITS
    page.parent.mkdir(parents=True)
    page.write_text(f"before\n\n{pages.BEGIN}\n\nold\n\n{pages.END}\n")
    file = tmp_path / "run.json"
    ruled = [one for one in taken() if one.case == "limits"]
    file.write_text(json.dumps(as_json(HEAD, ruled)))
    assert pages.main([str(file)]) == 0
    text = page.read_text()
    assert "old" not in text
    assert "| drain, Sequential, 1,000 keys / no rules | ≥ 0.3 |" in text
    assert "did not measure" not in text

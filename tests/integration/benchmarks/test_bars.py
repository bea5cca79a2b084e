"""A run of every case gives the numbers that the bars look for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bars import BARS
from benchmarks.readings import NO_PEER
from tests.support.sources import ROOT

# They measure for a minute; what everybody runs shows that cases run at all.
pytestmark = pytest.mark.chaos


@pytest.mark.timeout(400)
def test_a_full_run_is_judged_by_every_bar(tmp_path: Path) -> None:
    """A small run says nothing about the bars, but all its figures are there."""
    file = tmp_path / "run.json"
    size = ("--full", "--scale", "0.005", "--repeat", "1", "--systems", "chancy")
    cases = ",".join(sorted({bar.of.case for bar in BARS}))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", *size, "--cases", cases, "--json", str(file)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    reasons = {one["bar"]: one["reason"] for one in found["bars"]}
    assert reasons.keys() == {bar.name for bar in BARS}
    assert {bar: reason for bar, reason in reasons.items() if reason not in ("", NO_PEER)} == {}
    judged = [one for one in found["bars"] if not one["reason"]]
    assert len(judged) >= 18
    for one in judged:
        assert one["measured"] > 0, one
        assert one["met"] is (
            one["measured"] >= one["bound"]
            if one["sense"] == "at least"
            else one["measured"] <= one["bound"]
        ), one
        assert f"| {one['bar']} |" in done.stdout
    scans = [one["details"].get("whole scans", 0) for one in found["measurements"]]
    assert max(scans) == 0, "a claim read the whole table"

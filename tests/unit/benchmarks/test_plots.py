"""The pictures of a run."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from benchmarks import pages
from benchmarks.report import as_json, number
from benchmarks.summary import ACKNOWLEDGED, summaries
from tests.unit.benchmarks.benchmark_run import HEAD, taken

pytestmark = pytest.mark.chaos
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def plots() -> ModuleType:
    """Imported here: matplotlib takes a second of each process that collects the tests."""
    return import_module("benchmarks.plots")


def test_a_run_gives_its_pictures(plots: ModuleType, tmp_path: Path) -> None:
    file, into = tmp_path / "run.json", tmp_path / "images"
    file.write_text(json.dumps(as_json(HEAD, taken())))
    assert plots.main([str(file), "--into", str(into)]) == 0
    assert {path.stem for path in into.iterdir()} == set(pages.PLOTS) == set(plots.PLOTS)
    for path in into.iterdir():
        root = ElementTree.parse(path).getroot()
        assert root.tag == f"{SVG}svg"
        assert len(list(root.iter(f"{SVG}path"))) > 20
        assert b"dc:date" not in path.read_bytes()


def test_rates_end_with_the_last_settlement(plots: ModuleType) -> None:
    measured = taken()
    axes = plots.throughput(summaries(plots.settled_rates(measured))).axes[0]
    shown = {text.get_text() for text in axes.texts}
    [peer] = [one for one in summaries(measured) if one.figure == "20,000 async jobs, pgqueuer"]
    assert number(peer.details[ACKNOWLEDGED]) in shown
    assert number(peer.median) not in shown

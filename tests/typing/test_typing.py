"""mypy and pyright find the wrong calls of jobs, and nothing else to say of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.sources import ROOT

HERE = Path(__file__).parent
#: Seconds for a checker that has nothing to begin with, on a machine that is busy.
WITHIN_S = 280
# In `make check`, mypy reports a wrong call that it does not find too: its line ignores an error
# that is not there.
pytestmark = [pytest.mark.timeout(WITHIN_S + 20), pytest.mark.chaos]
_IGNORED = re.compile(r"  # type: ignore\[.*\]$")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module of wrong calls with nothing to ignore them."""
    lines = (HERE / "wrong.py").read_text(encoding="utf-8").splitlines()
    path = tmp_path_factory.mktemp("typing") / "bare.py"
    path.write_text("\n".join(_IGNORED.sub("", line) for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def wrong() -> set[int]:
    lines = (HERE / "wrong.py").read_text(encoding="utf-8").splitlines()
    found = {number for number, line in enumerate(lines, 1) if _IGNORED.search(line)}
    assert len(found) > 20
    return found


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S
    )
    assert not done.stderr, done.stderr
    return done.stdout


def test_mypy_finds_each_wrong_call(bare: Path, wrong: set[int]) -> None:
    said = run("mypy", "--no-error-summary", str(HERE / "right.py"), str(bare))
    found = re.findall(r"^(\S+\.py):(\d+): error: .*", said, re.MULTILINE)
    assert {Path(path).name for path, _ in found} == {"bare.py"}, said
    assert {int(line) for _, line in found} == wrong, said


def test_pyright_finds_each_wrong_call(bare: Path, wrong: set[int]) -> None:
    said = run("pyright", "--outputjson", str(HERE / "right.py"), str(HERE / "wrong.py"), str(bare))
    found = [
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1)
        for one in json.loads(said)["generalDiagnostics"]
        if one["severity"] == "error"
    ]
    assert {name for name, _ in found} == {"bare.py"}, said
    assert {line for _, line in found} == wrong, said

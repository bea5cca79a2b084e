"""Runs of tests in the background, and tests that leave processes behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.command import environment
from tests.support.sources import ROOT

#: The first test fails; the others see neither its process nor that the run is in the background.
TESTS = """\
import subprocess
import sys

import psutil

left = []


def test_a_process_is_left_behind():
    left.append(subprocess.Popen(["sleep", "60"]).pid)


def test_the_next_test_does_not_see_it():
    assert not psutil.pid_exists(left[0]) or psutil.Process(left[0]).status() == "zombie"


def test_children_take_sigint():
    program = "import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert child.stdout == "False\\n"
"""


def _ignore_sigint() -> None:
    """As a shell without job control does for a program in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def test_a_run_in_the_background_fails_only_the_test_that_leaves_a_process(tmp_path: Path) -> None:
    file = tmp_path / "test_background.py"
    file.write_text(TESTS)
    plugins = ("-p", "tests.conftest", "-p", "no:randomly", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--rootdir", str(tmp_path), *plugins, str(file)],
        cwd=tmp_path,
        env=environment({"PYTHONPATH": str(ROOT)}),
        preexec_fn=_ignore_sigint,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "processes were still running" in done.stdout, done.stdout + done.stderr
    # The check of its leftovers is an error of the test, whose own assertions hold.
    assert done.stdout.splitlines()[-1].startswith("3 passed, 1 error"), done.stdout

"""Databases of the examples, and a process that runs their pages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.docs.rehearsal import Forks
from tests.support import leftovers
from tests.support.sources import ROOT


@pytest.fixture(scope="session")
def rehearsals(server_dsn: str) -> Iterator[Forks]:
    """Runs pages: their words are the path of one.

    ``server_dsn`` is asked for so that the server is not taken for something left behind.
    """
    program = [sys.executable, "-W", "error", "-m", "tests.docs.rehearsal"]
    with subprocess.Popen(
        program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        leftovers.lasting.add(process.pid)
        assert process.stdin is not None
        assert process.stdout is not None
        yield Forks(process.stdin.write, process.stdout)
        process.stdin.close()

"""The example examples/quickstart runs as it stands."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.command import alone, inside, started
from tests.support.sources import ROOT
from tests.support.waiting import eventually_sync


@pytest.fixture
def quickstart(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples" / "quickstart", tmp_path / "quickstart"))


@pytest.mark.chaos  # the pages that begin with it take the same steps
def test_the_lines_of_the_readme(quickstart: Path, empty_dsn: str) -> None:
    """Beside the script, which makes the tables, and waits for what a worker runs."""
    env = {"CHANCY_DSN": empty_dsn}
    lines = [
        line.removeprefix("$ ").partition("   ")[0]
        for line in (quickstart / "README.md").read_text().splitlines()
        if line.startswith("$ chancy ") and ("--burst" in line or "worker" not in line)
    ]
    assert len(lines) == 4
    with started([sys.executable, "push.py"], cwd=quickstart, env=env) as script:
        eventually_sync(lambda: "pushed" in script.log)
        for line in lines:
            _, *words = shlex.split(line)
            if "--app" in words:
                alone(*words, cwd=quickstart, env=env)
            else:
                inside(*words, dsn=empty_dsn)
        assert script.process.wait(20) == 0
        assert script.log.splitlines()[1:] == ["5", "Hello, Ann!"]
    listed = inside("job", "list", "--json", dsn=empty_dsn).json
    assert [one["result"] for one in listed if one["func"] == "jobs.add"] == [5, 5]


def test_the_embedded_worker_runs_until_sigterm(quickstart: Path, dsn: str) -> None:
    script = (quickstart / "embedded_worker.py").read_text()
    for line in (
        'async with Chancy("postgresql://',
        "async with Worker(chancy) as worker:",
        "await worker.wait_for_shutdown()",
    ):
        assert line in script
    found = conninfo_to_dict(dsn)
    env = {
        "CHANCY_DSN": dsn,
        "PGPORT": str(found["port"]),
        "PGUSER": str(found["user"]),
        "PGDATABASE": str(found["dbname"]),
    }
    with started([sys.executable, "embedded_worker.py"], cwd=quickstart, env=env) as worker:
        eventually_sync(lambda: "serves default" in worker.log)
        push = (
            "push",
            "jobs.add",
            "--no-validate",
            "--arg=a=2",
            "--arg=b=3",
            "--wait=20",
            "--json",
        )
        assert inside(*push, dsn=dsn).json["result"] == 5
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(20) == 0
        assert "the worker has stopped" in worker.log

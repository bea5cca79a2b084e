"""The benchmarks run, say what they found, and clean up after themselves."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pytest

from benchmarks.bars import BARS
from benchmarks.run import CASES, main
from benchmarks.summary import NO_PEER
from benchmarks.systems import OTHERS, PGQUEUER, STAMP
from tests.support.command import kill_session
from tests.support.postgres_fixtures import memory
from tests.support.sql import ask
from tests.support.waiting import eventually_sync

ROOT = Path(__file__).parents[3]
TINY = ("--quick", "--scale", "0.01")
#: Cases that only full runs measure.
LONG = {"beside", "sustained", "steady"}

# A run starts a server and dozens of processes, which takes a slow machine minutes.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where its servers have their data: other runs may be under way. In memory, if there is room:
    they flush all that they write."""
    with TemporaryDirectory(prefix="chancy-test-", dir=memory()) as name:
        path = Path(name)
        path.chmod(0o755)
        monkeypatch.setenv("TMPDIR", name)
        yield path


@pytest.fixture(autouse=True)
def peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No peer is installed, whatever the checkout has."""
    directory = tmp_path / "peers"
    monkeypatch.setenv("CHANCY_BENCH_PEERS", str(directory))
    return directory


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.run", *TINY, *arguments]


def _schemas(dsn: str) -> set[str]:
    return {row[0] for row in ask(dsn, "select nspname from pg_namespace")}


def _databases(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as session:
        rows = session.execute("select datname from pg_database where datname like 'chancy_bench%'")
        return {row[0] for row in rows}


def _claims(dsn: str) -> int:
    """Sessions of workers."""
    with psycopg.connect(dsn) as session:
        rows = session.execute(
            "select from pg_stat_activity"
            " where application_name = 'chancy listener' and datname = current_database()"
        )
        return rows.rowcount


def _leftovers() -> set[Path]:
    return set(Path(os.environ.get("TMPDIR", "/tmp")).glob("chancy-bench-*"))


def _check_measurement(one: dict[str, Any]) -> None:
    """Its figures are whatever they are: some are too small for the clock in a tiny run."""
    assert math.isfinite(one["value"]), one
    assert one["round"] == 1
    assert one["unit"] in {"jobs/s", "rows/s", "ms", "MB", "s", "ratio", "cores", "claims"}
    assert all(isinstance(detail, int | float) for detail in one["details"].values())


@pytest.mark.chaos
def test_cases_of_full_runs_report_their_figures(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    size = ("--full", "--scale", "0.003", "--repeat", "1", "--cases", ",".join(sorted(LONG)))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", *size, "--json", str(file)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert {one["case"] for one in found["measurements"]} == LONG
    for one in found["measurements"]:
        _check_measurement(one)
    measured = {bar.name for bar in BARS if bar.of.case in LONG}
    assert [one for one in found["bars"] if one["bar"] in measured and one["reason"]] == []


@pytest.mark.chaos
def test_a_quick_run_reports_every_case_beside_its_limits(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    done = subprocess.run(
        _command("--json", str(file)), cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())

    assert found["format"] == 1
    assert found["machine"].keys() == {"cpu", "cores", "memory_gb", "system"}
    assert found["versions"].keys() >= {"python", "postgres", "chancy", "asyncpg", "psycopg"}
    assert found["versions"]["postgres"].startswith("16")
    wanted = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "1GB"}
    assert found["settings"].items() >= wanted.items()
    assert "commit" in found

    assert {one["case"] for one in found["measurements"]} == CASES.keys() - LONG
    missing = {one["system"] for one in found["measurements"] if one["missing"]}
    assert missing == {system.name for system in OTHERS}
    measured = [one for one in found["measurements"] if not one["missing"]]
    for one in measured:
        _check_measurement(one)
    figures = [one["figure"] for one in measured]
    assert len(set(figures)) == len(figures)
    summaries = [one for one in found["summary"] if not one["missing"]]
    assert [one["figure"] for one in summaries] == figures
    for one, summary in zip(measured, summaries, strict=True):
        assert summary["min"] == summary["median"] == summary["max"] == one["value"]
        assert summary["ratios"].keys() == one["against"].keys()

    drains = [one for one in measured if one["case"] == "drain" and "async jobs" in one["figure"]]
    assert [one["system"] for one in drains] == ["chancy, history kept", "chancy, not kept"]
    for one in drains:
        assert one["against"].keys() == {"limit", "floor"}
        details = one["details"]
        assert details["runs above jobs"] == 0
        assert details["acknowledged jobs/s"] > 0
        assert details["WAL B/job"] > 0
        assert details["transactions/1k jobs"] > 0
        assert details.keys() >= {"CPU s/10k", "server CPU s/10k", "RSS MB"}
    fleets = [one for one in measured if "idle workers," in one["figure"]]
    assert all(one["details"]["statements/s"] > 0 for one in fleets), fleets
    assert max(one["details"].get("whole scans", 0) for one in measured) == 0, "of the table"
    judged = [one for one in found["bars"] if not one["reason"]]
    assert len(judged) >= 30, [one for one in found["bars"] if one["reason"] != NO_PEER]

    for name in missing:
        assert re.search(rf"^\| .*cannot run: .*\| {name} \|", done.stdout, re.MULTILINE), name
    for figure in figures:
        assert re.search(rf"^\| {re.escape(figure)} \|", done.stdout, re.MULTILINE), figure


@pytest.mark.chaos
def test_a_given_server_is_left_as_it_was(dsn: str, tmp_path: Path) -> None:
    before = _schemas(dsn)
    file = tmp_path / "figures.json"
    done = subprocess.run(
        _command("--dsn", dsn, "--cases", "push", "--repeat", "2", "--json", str(file)),
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert found["server_given"]
    assert {one["round"] for one in found["measurements"]} == {1, 2}
    assert {one["rounds"] for one in found["summary"]} == {1, 2}, "the memory once"
    assert all("limit" not in one["ratios"] for one in found["summary"]), "it was not measured"
    assert _schemas(dsn) == before


@pytest.mark.chaos
def test_a_peer_that_fails_is_reported_and_leaves_nothing_behind(
    dsn: str, peers: Path, tmp_path: Path
) -> None:
    # As if it were installed, but without its package.
    programs = peers / PGQUEUER.name / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (peers / PGQUEUER.name / STAMP).write_text(PGQUEUER.digest())
    file = tmp_path / "figures.json"
    options = ("--cases", "push", "--systems", "chancy,pgqueuer", "--json", str(file))
    done = subprocess.run(
        _command("--dsn", dsn, *options), cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["measurements"]
    missing = [one for one in found if one["missing"]]
    assert [one["system"] for one in missing] == ["pgqueuer", "pgqueuer"]
    assert all("No module named" in one["figure"] for one in missing)
    assert len(found) > len(missing), "chancy was measured"
    assert _databases(dsn) == set()


def test_an_unknown_system_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([*TINY, "--systems", "nobody"])
    assert "there is no system 'nobody': choose from chancy, " in capsys.readouterr().err


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_behind(dsn: str, number: signal.Signals) -> None:
    before, leftovers = _schemas(dsn), _leftovers()
    # 30 seconds of pushes: the signal comes while the worker runs.
    command = [sys.executable, "-m", "benchmarks.run", "--dsn", dsn, "--cases", "latency"]
    process = subprocess.Popen(
        [*command, "--quick", "--scale", "10"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            eventually_sync(lambda: process.poll() is not None or _claims(dsn) > 0, timeout=30)
            process.send_signal(number)
            output, errors = process.communicate(timeout=20)
        finally:
            kill_session(process)
    assert "latency" in errors
    assert process.returncode == 130, errors
    assert output == ""
    assert errors.endswith("interrupted\n")
    assert _schemas(dsn) == before
    assert _leftovers() == leftovers

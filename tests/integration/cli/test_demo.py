"""``chancy demo``: on a private server, on a given one, and when a total is tampered with."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from chancy.cli.demo import course, jobs
from tests.support.command import Answer, alone, command, started
from tests.support.waiting import eventually_sync


def _rows(answer: Answer) -> dict[str, list[str]]:
    """The table by its first column: what the jobs said, what was computed, the verdict."""
    cells = [re.split(r"\s{2,}", line) for line in answer.out.splitlines()]
    return {row[0]: row[1:] for row in cells if len(row) == 4}


def test_the_demo_on_a_private_server(tmp_path: Path) -> None:
    answer = alone("demo", "--modules", "40", cwd=tmp_path)
    rows = _rows(answer)
    assert rows["modules parsed"] == ["40", "40", "right"]
    assert rows["modules read"] == ["40", "40", "right"]
    sizes = sum(path.stat().st_size for path in course.find(40))
    assert rows["bytes"] == [f"{sizes:,}", f"{sizes:,}", "right"]
    assert rows["retried"] == ["2", "2", "right"]
    assert rows["failed"] == ["1", "1", "right"]
    assert len(rows) == 10
    assert {row[2] for row in rows.values()} == {"right"}
    assert "pushed 81 jobs in one transaction" in answer.out
    assert "every total is right" in answer.out
    assert answer.err == ""


@pytest.mark.chaos
def test_the_demo_on_a_server_of_yours_twice_and_nothing_else_is_touched(
    tmp_path: Path, dsn: str
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("create table mine as select 1")
        for _ in range(2):
            connection.commit()
            answer = alone("demo", "--modules=10", "--dsn", dsn, cwd=tmp_path)
            assert "are kept in schema chancy_demo" in answer.out
        assert connection.execute("select count(*) from mine").fetchone() == (1,)
        assert connection.execute("select count(*) from chancy.finished_jobs").fetchone() == (0,)
        kept = connection.execute(
            "select count(*), count(*) filter (where state = 5) from chancy_demo.finished_jobs"
        )
        assert kept.fetchone() == (42, 2)
        assert connection.execute("select count(*) from chancy_demo.jobs").fetchone() == (0,)


@pytest.mark.chaos
def test_a_total_that_was_tampered_with_is_found(tmp_path: Path, dsn: str) -> None:
    alone("migrate", "upgrade", "--schema=chancy_demo", "--dsn", dsn, cwd=tmp_path)
    with psycopg.connect(dsn) as connection:
        connection.execute(
            """
            create function chancy_demo.tamper() returns trigger language plpgsql as $$
            begin
              if new.result ? 'lines' then
                new.result := jsonb_set(new.result, '{lines}',
                  to_jsonb((new.result->>'lines')::int + 1));
              end if;
              return new;
            end $$"""
        )
        connection.execute(
            "create trigger tamper before insert on chancy_demo.finished_jobs"
            " for each row execute function chancy_demo.tamper()"
        )
    answer = alone("demo", "--modules=10", "--dsn", dsn, cwd=tmp_path, code=1)
    assert "differ in: lines\n" in answer.err
    rows = _rows(answer)
    assert rows["lines"][2] == "WRONG"
    assert rows["functions"][2] == "right"
    assert "every total is right" not in answer.out


@pytest.mark.chaos
def test_ctrl_c_ends_the_demo_cleanly(tmp_path: Path, dsn: str) -> None:
    with started(command("demo", "--dsn", dsn), cwd=tmp_path) as demo:
        eventually_sync(lambda: "pushed" in demo.log, timeout=30)
        family = psutil.Process(demo.pid).children(recursive=True)
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(20) == 130
        assert demo.log.splitlines()[-1] == "chancy: interrupted"
        assert not any(one.is_running() for one in family)
    with psycopg.connect(dsn) as connection:
        left = connection.execute("select count(*) from chancy_demo.jobs where state in (0, 2)")
        assert left.fetchone() == (0,)


@pytest.mark.chaos
def test_the_demo_shows_its_jobs_on_the_dashboard_until_ctrl_c(tmp_path: Path, dsn: str) -> None:
    words = ("demo", "--modules=5", "--dashboard", "--dsn", dsn)
    with started(command(*words), cwd=tmp_path) as demo:
        eventually_sync(lambda: "Ctrl-C ends it" in demo.log, timeout=60)
        address = re.search(r"dashboard at (http://\S+/),", demo.log)
        assert address
        with httpx.Client(base_url=address[1]) as browser:
            assert "parse" in browser.get("jobs?q=state:succeeded").text
            overview = browser.get("")
            assert overview.status_code == 200
            assert "No worker is running" not in overview.text

            def goes_on() -> int:
                with psycopg.connect(dsn) as connection:
                    query = "select count(*) from chancy_demo.finished_jobs"
                    ((count,),) = connection.execute(query).fetchall()
                    return int(count)

            eventually_sync(lambda: goes_on() > 12, timeout=30)
        demo.process.send_signal(signal.SIGINT)
        assert demo.process.wait(30) == 130, demo.log
    assert "Traceback" not in demo.log


def test_measured_values() -> None:
    branch = b"        if 1:\n            pass\n        elif 2:\n            pass\n"
    source = b"class A:\n    def f(self):\n" + branch
    assert jobs.measure(source) == {"lines": 6, "functions": 1, "classes": 1, "depth": 3}
    assert jobs.measure(b"") == {"lines": 0, "functions": 0, "classes": 0, "depth": 0}

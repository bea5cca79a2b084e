"""The commands that change the jobs that conditions select."""

from __future__ import annotations

import asyncio

import click
import pytest

from chancy.cli import job_changes
from tests.support.command import Answer, inside
from tests.support.sql import ask

CONDITIONS = ["--queue", "mail", "--func", "print", "--older", "0s", "--where", "tenant_id=42"]


@pytest.fixture(autouse=True)
def four_jobs(dsn: str) -> None:
    """Three of tenant 42, two of which fail."""
    inside("queue", "declare", "mail", dsn=dsn)
    for tenant in (42, 42, 42, 7):
        push = ("push", "builtins.print", "--no-validate", "--queue", "mail", "--delay", "600")
        inside(*push, "--arg", f"tenant_id={tenant}", dsn=dsn)
    ask(
        dsn,
        """update chancy.jobs set errors = '[{"types": ["ssl.SSLError"], "message": "Bad"}]'
        where ctid in (select ctid from chancy.jobs order by id limit 2)""",
    )


def job(dsn: str, *words: object, code: int = 0) -> Answer:
    return inside("job", *words, code=code, dsn=dsn)


def rows(dsn: str, column: str) -> list[object]:
    return [row[0] for row in ask(dsn, f"select {column} from chancy.jobs order by id")]


def test_conditions_choose_what_is_cancelled(dsn: str) -> None:
    assert job(dsn, "cancel", *CONDITIONS, "--dry-run").out == "3 jobs to cancel\n"
    assert len(rows(dsn, "id")) == 4
    done = job(dsn, "cancel", *CONDITIONS, "--error", "sslerror: bad", "--yes", "--json").json
    assert done == {"dry_run": False, "matched": 2, "changed": 2, "asked": 0}
    assert job(dsn, "cancel", "--all", "--yes").out == "2 of 2 jobs cancelled\n"


def test_each_change_reaches_the_jobs(dsn: str) -> None:
    inside("queue", "declare", "bulk", dsn=dsn)
    one = [*CONDITIONS, "--error", "ssl", "--state", "scheduled", "--yes"]
    assert job(dsn, "move", "--to-queue", "bulk", *one).out == "2 of 2 jobs moved\n"
    assert rows(dsn, "queue") == ["bulk", "bulk", "mail", "mail"]
    job(dsn, "prioritize", "--priority", "-5", "--queue", "bulk", "--yes")
    assert rows(dsn, "priority") == [-5, -5, 0, 0]
    job(dsn, "retry", "--queue", "bulk", "--yes")
    assert rows(dsn, "state") == [0, 0, 2, 2]
    at = "2099-01-31T09:00:00+00:00"
    job(dsn, "reschedule", "--run-at", at, "--queue", "bulk", "--yes")
    job(dsn, "reschedule", "--delay", "0", "--queue", "mail", "--yes")
    assert rows(dsn, "state") == [2, 2, 0, 0]
    assert {one.year for one in rows(dsn, "run_at")[:2]} == {2099}  # type: ignore[attr-defined]
    job(dsn, "cancel", "--all", "--yes")
    ask(dsn, "update chancy.finished_jobs set finished_at = now() - interval '2 min'")
    deleted = job(dsn, "delete", "--state", "cancelled", "--older", "1m", "--yes", "--json").json
    assert (deleted["matched"], deleted["changed"]) == (4, 4)


AMBIGUOUS: dict[tuple[str, ...], str] = {
    (): "pass conditions such as --queue and --older, or --all to cancel every job",
    ("--all", "--queue", "mail"): "either conditions, or --all",
    ("--queue", "mail"): "pass --yes to confirm without a terminal",
    ("--where", "tenant_id"): "'tenant_id' is not PATH=VALUE",
    ("--where", "a=1", "--where", "a=2"): "a is given twice",
    ("--state", "failed", "--yes"): "cancel does not apply to failed jobs",
    ("0190f3c2-7e21-7c55-8a44-3d3c5b9b7f10", "--queue", "mail"): "either ids, or conditions",
}


def test_ambiguous_input_is_refused(dsn: str) -> None:
    for words, error in AMBIGUOUS.items():
        assert error in job(dsn, "cancel", *words, code=2).err.replace("\n", " "), words
    assert len(rows(dsn, "id")) == 4


def test_a_terminal_is_asked(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def confirm(text: str, **_: object) -> None:
        asked.append(text)
        with pytest.raises(RuntimeError):  # which would ignore the first Ctrl-C
            asyncio.get_running_loop()
        raise click.Abort

    monkeypatch.setattr(job_changes, "_on_terminal", lambda stream: True)
    monkeypatch.setattr(click, "confirm", confirm)
    job(dsn, "cancel", "--queue", "mail", code=1)
    assert asked == ["Cancel 4 jobs?"]
    assert len(rows(dsn, "id")) == 4
    shown = job(dsn, "cancel", "--queue", "mail", "--yes")
    assert "cancel" in shown.err
    assert "4/" in shown.err

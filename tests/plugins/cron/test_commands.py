"""``chancy cron``, of an application that is made of settings alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from tests.plugins.cron.clockwork import pushed
from tests.support.command import Answer, inside
from tests.support.sql import ask


def cron(dsn: str, *words: object, code: int = 0) -> Answer:
    return inside("cron", *words, code=code, dsn=dsn, plugins="chancy.cron")


def test_an_entry_from_its_beginning_to_its_end(dsn: str) -> None:
    said = cron(
        dsn,
        *("add", "report", "0 6 * * mon-fri", "tests.support.jobs.note", "--arg", 'value="x"'),
        *("--zone", "Europe/Berlin", "--overlap", "skip", "--jitter", "30", "--grace", "5"),
        *("--misfire", "all", "--backfill", "7", "--priority", "3", "--max-attempts", "2"),
    )
    assert said.out.startswith("cron entry report: next tick at 20")
    (one,) = cron(dsn, "list", "--json").json
    expected = {
        "name": "report",
        "schedule": "0 6 * * mon-fri",
        "zone": "Europe/Berlin",
        "misfire": "all",
        "backfill_limit": 7,
        "overlap": "skip",
        "grace_s": 5.0,
        "jitter_s": 30.0,
        "func": "tests.support.jobs.note",
        "arguments": {"value": "x"},
        "queue": "async",
        "priority": 3,
        "max_attempts": 2,
        "source": "run time",
        "paused_at": None,
        "last_tick": None,
        "problem": None,
    }
    assert expected.items() <= one.items()
    assert cron(dsn, "pause", "report").out == "cron entry report is paused\n"
    assert "paused" in cron(dsn, "list").out
    id = cron(dsn, "run", "report").out.strip()
    assert cron(dsn, "run", "report", "--json").json["id"] != id
    assert pushed(dsn) == [{"entry": "report", "manual": True}] * 2
    resumed = cron(dsn, "resume", "report", "--json").json
    assert resumed == {"entry": "report", "found": True}
    newest, oldest = cron(dsn, "history", "report", "--json").json
    assert (oldest["job_id"], oldest["manual"], oldest["skipped"]) == (id, True, None)
    assert newest["fired_at"] > oldest["fired_at"]
    assert "manual" in cron(dsn, "history", "report", "--limit", "1").out
    assert cron(dsn, "remove", "report").out == "cron entry report is removed\n"
    assert cron(dsn, "list", "--json").json == []
    assert ask(dsn, "select from chancy.cron_ticks") == []


def test_the_next_ticks_are_shown_in_both_times(dsn: str) -> None:
    words = (
        "report",
        "30 7 * * *",
        "tests.support.jobs.note",
        "--arg",
        "value=1",
        "--zone",
        "Asia/Tokyo",
    )
    cron(dsn, "add", *words)
    asked_at = datetime.now(UTC)
    ticks = cron(dsn, "next", "report", "--count", "3", "--json").json
    moments = [datetime.fromisoformat(one["utc"]) for one in ticks]
    assert asked_at < moments[0] <= datetime.now(UTC) + timedelta(days=1)
    assert [b - a for a, b in pairwise(moments)] == [timedelta(days=1)] * 2
    assert all(one["local"].endswith("T07:30:00+09:00") for one in ticks)
    assert all(one["utc"].endswith("T22:30:00+00:00") for one in ticks)
    table = cron(dsn, "next", "report").out.splitlines()
    assert table[0].split() == ["Asia/Tokyo", "UTC"]
    assert len(table) == 6
    assert "07:30:00 +0900" in table[1]


def test_no_is_one_and_a_mistake_is_two(dsn: str) -> None:
    add = "add", "one", "@daily", "tests.support.jobs.note", "--arg", "value=1"
    cron(dsn, *add)
    said = cron(dsn, *add, code=1)
    assert said.err == "chancy: cron entry 'one' exists: pass --upsert to replace it\n"
    assert cron(dsn, *add, "--upsert", "--json").json["name"] == "one"
    for command in ("pause", "resume", "remove", "run", "next", "history"):
        said = cron(dsn, command, "no\x1b[31mbody", code=1)
        assert said.err == "chancy: there is no cron entry 'no\\x1b[31mbody'\n"
    for words, why in (
        (("two", "@sometimes", "tests.support.jobs.note", "--arg", "value=1"), "is not a schedule"),
        (("two", "@daily", "tests.support.jobs.note"), "missing a required argument: 'value'"),
        (("two", "@daily", "tests.support.jobs.nothing"), "no function 'nothing'"),
        (("two", "@daily", "tests.support.jobs.note", "--arg", "value=x"), "is not JSON"),
        (
            ("two", "@daily", "tests.support.jobs.note", "--arg", "value"),
            "must look like NAME=JSON",
        ),
        (("two", "@daily", "tests.support.jobs.note", "--misfire", "x"), "'x' is not one of"),
    ):
        assert why in cron(dsn, "add", *words, code=2).err
    assert len(cron(dsn, "list", "--json").json) == 1
    cron(dsn, "add", "two", "@daily", "elsewhere.jobs.run", "--no-validate")
    assert len(cron(dsn, "list", "--json").json) == 2


def test_invalid_rows_are_reported_on_stderr(dsn: str) -> None:
    ask(
        dsn,
        "insert into chancy.cron_entries (name, expression, func, problem)"
        " values ('odd', 'never', 'a.b', E'\\x1b[31m no')",
    )
    said = cron(dsn, "list")
    assert "invalid" in said.out
    assert said.err == "chancy: cron entry 'odd' cannot be fired: '\\x1b[31m no'\n"
    assert "is not a schedule" in cron(dsn, "next", "odd", code=2).err
    ask(dsn, "update chancy.cron_entries set zone = '/etc/passwd', expression = '@daily'")
    assert "is not a time zone" in cron(dsn, "next", "odd", code=2).err


def test_without_its_tables_the_commands_give_advice(dsn: str) -> None:
    for name in ("cron_entries", "cron_ticks", "cron_version"):
        ask(dsn, f"drop table chancy.{name}")
    assert "'cron' of the plugin 'chancy.cron'" in cron(dsn, "list", code=3).err

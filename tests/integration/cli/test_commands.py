"""The commands that look at and change what is in the database."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from dataclasses import replace
from datetime import datetime

import psycopg
import pytest
from psycopg import sql

from chancy import Chancy, Limit, Queue
from chancy.postgres.schema import migrate as tables
from chancy.queue.executor_options import AsyncOptions, ProcessOptions, ThreadOptions
from chancy.queue.rules import FairShare, GlobalConcurrency, RateLimit
from tests.support.command import inside
from tests.support.sql import ask


@pytest.fixture(autouse=True)
def database(dsn: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("tests.integration.cli.test_commands.DSN", dsn)
    return dsn


DSN = ""


def push(*arguments: object) -> str:
    answer = inside("push", "builtins.print", "--no-validate", *arguments, dsn=DSN)
    return answer.out.strip()


def test_a_queue_from_declaration_to_deletion() -> None:
    inside("queue", "declare", "mail", "--executor", "async", "--tag", "gpu=.*", dsn=DSN)
    paused = inside("queue", "pause", "mail", "--for", "600", "--json", dsn=DSN).json
    assert paused == {"queue": "mail", "found": True}
    push("--queue", "mail")
    push("--queue", "nowhere")
    listed = {one["name"]: one for one in inside("queue", "list", "--json", dsn=DSN).json}
    mail = listed["mail"]
    assert (mail["executor"], mail["tags"], mail["paused"]) == ("async", ["gpu=.*"], True)
    assert datetime.fromisoformat(mail["resume_at"]).tzinfo is not None
    assert (mail["pending"], mail["running"], mail["scheduled"]) == (1, 0, 0)
    assert 0 < mail["oldest_s"] < 600
    assert 0 <= listed["nowhere"].pop("oldest_s") < mail["oldest_s"]
    assert listed["nowhere"] == {
        "name": "nowhere", "pending": 1, "running": 0, "scheduled": 0, "held": 0, "declared": False
    }  # fmt: skip
    shown = inside("queue", "list", dsn=DSN).out
    assert "paused until 20" in shown
    assert "(not declared)" in shown
    assert "oldest s" in shown
    inside("queue", "resume", "mail", dsn=DSN)
    assert "active" in inside("queue", "list", dsn=DSN).out
    over = ["--resume-at", "2020-01-31T09:00:00+01:00"]
    refused = inside("queue", "pause", "mail", *over, dsn=DSN, code=2).err
    assert "resume_at=2020-01-31T08:00:00+00:00 is over" in refused
    inside("queue", "delete", "mail", dsn=DSN)
    for action in ("pause", "resume", "delete"):
        assert "no queue 'mail'" in inside("queue", action, "mail", dsn=DSN, code=1).err
        assert inside("queue", action, "mail", "--json", dsn=DSN, code=1).json["found"] is False


def test_a_queue_that_is_there_is_not_changed_without_upsert() -> None:
    inside("queue", "declare", "mail", "--concurrency", "3", dsn=DSN)
    answer = inside("queue", "declare", "mail", "--concurrency", "4", dsn=DSN, code=1)
    assert "concurrency" in answer.err
    changed = inside("queue", "declare", "mail", "--concurrency=4", "--upsert", "--json", dsn=DSN)
    assert changed.json["concurrency"] == 4


async def test_upsert_changes_the_given_settings_alone() -> None:
    rules = (GlobalConcurrency(2),)
    queue = Queue("mail", executor="async", tags=frozenset({"eu"}), rules=rules,
                  limits=(Limit.time(9),), options=AsyncOptions(grace_s=1))  # fmt: skip
    polite = ThreadOptions(cooperative=True)
    async with Chancy(DSN) as chancy:
        await chancy.declare(queue, upsert=True)
        for options, expected in (
            (["--concurrency=4"], queue := replace(queue, concurrency=4)),
            (["--grace=2"], queue := replace(queue, options=AsyncOptions(grace_s=2))),
            (["--executor=thread", "--cooperative"],
             replace(queue, executor="thread", concurrency=None, options=polite)),
        ):  # fmt: skip
            command = ["queue", "declare", "mail", *options, "--upsert"]
            await asyncio.to_thread(inside, *command, dsn=DSN)
            assert expected in await chancy.get_queues()


async def test_upsert_keeps_the_other_limits_and_options() -> None:
    memory = Limit.memory(2**29)
    queue = Queue("heavy", limits=(Limit.time(9), memory), options=ProcessOptions(max_jobs=5))
    async with Chancy(DSN) as chancy:
        await chancy.declare(queue)
        command = ["queue", "declare", "heavy", "--time-limit=60", "--grace=1", "--upsert"]
        await asyncio.to_thread(inside, *command, dsn=DSN)
        [stored] = [one for one in await chancy.get_queues() if one.name == "heavy"]
    assert stored.limits == (Limit.time(60), memory)
    assert stored.options == ProcessOptions(max_jobs=5, grace_s=1)


def test_queue_list_shows_rules() -> None:
    rules = (RateLimit(600, per=60, by="host"), GlobalConcurrency(5), FairShare("tenant_id"))

    async def declare() -> None:
        async with Chancy(DSN) as chancy:
            await chancy.declare(Queue("crawl", rules=rules))

    asyncio.run(declare())
    shown = inside("queue", "list", dsn=DSN).out
    assert "rate 600/60s by host, concurrency 5, fair by tenant_id" in shown
    listed = {one["name"]: one for one in inside("queue", "list", "--json", dsn=DSN).json}
    assert listed["default"]["rules"] == []
    assert listed["crawl"]["rules"][1] == {"rule": "concurrency", "by": None, "limit": 5}


def test_a_queue_is_declared_with_limits_and_options() -> None:
    bounds = ["--time-limit=1.5", "--memory-limit=512", "--max-jobs=100", "--max-memory=1024"]
    more = ["--initializer=shop.start.warm", "--grace=0", "--weight=3"]
    stored = inside("queue", "declare", "reports", *bounds, *more, "--json", dsn=DSN).json
    assert stored["limits"] == {"time_s": 1.5, "memory_bytes": 512 * 2**20}
    assert stored["options"] == {
        "max_jobs": 100,
        "max_memory_bytes": 2**30,
        "initializer": "shop.start.warm",
        "grace_s": 0,
        "weight": 3,
    }
    inside("queue", "declare", "polite", "--executor=thread", "--time-limit=9", "--cooperative",
           dsn=DSN)  # fmt: skip
    inside("queue", "declare", "loop", "--executor=async", "--grace=5", dsn=DSN)
    shown = inside("queue", "list", dsn=DSN).out
    assert "1.5 s, 512 MiB  max_jobs=100 " in shown
    assert "9 s             cooperative=yes" in shown
    listed = {one["name"]: one for one in inside("queue", "list", "--json", dsn=DSN).json}
    assert listed["polite"]["limits"] == {"time_s": 9}
    assert listed["polite"]["options"] == {"cooperative": True}
    assert (listed["loop"]["limits"], listed["loop"]["options"]) == ({}, {})
    # Said again it is the same queue, and otherwise it is not.
    inside("queue", "declare", "reports", *bounds, *more, dsn=DSN)
    answer = inside("queue", "declare", "reports", *bounds, dsn=DSN, code=1)
    assert "different settings (options): pass --upsert" in answer.err
    answer = inside("queue", "declare", "reports", *more, dsn=DSN, code=1)
    assert "different settings (limits, options): pass --upsert" in answer.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--time-limit=0"], "a limit of time must be from 0.001 to 31,536,000 seconds, not 0.0"),
        (["--time-limit=nan"], "a limit of time must be from 0.001"),
        (["--memory-limit=31"], "a limit of memory must be from 33,554,432"),
        (["--max-memory=1"], "max_memory_bytes=1048576 must be a whole number"),
        (["--grace=inf"], "grace_s=inf must be a number from 0 to 3,600 seconds"),
        (["--initializer=os.system()"], "is not the path of a function"),
        (["--executor=thread", "--time-limit=5"], "a thread cannot be stopped"),
        (["--executor=thread", "--memory-limit=64", "--cooperative"], "share the memory"),
        (["--executor=async", "--max-jobs=5"], "the executor async has the options grace_s, not"),
        (["--cooperative"], "not 'cooperative'"),
        (["--broker=redis"], "'odd' has the broker 'redis', which no plugin"),
        (["--broker=Redis!"], "is not a valid broker name"),
        (["--broker-option=shards=2"], "the broker postgres takes no broker_options"),
        (["--broker-option=shards"], "'shards' is not KEY=VALUE"),
    ],
)
def test_a_queue_that_cannot_work_is_not_declared(options: list[str], said: str) -> None:
    assert said in inside("queue", "declare", "odd", *options, dsn=DSN, code=2).err
    assert "odd" not in inside("queue", "list", dsn=DSN).out


def test_a_queue_is_declared_in_the_broker_of_a_plugin() -> None:
    app = ("--app", "tests.support.two_brokers:make")
    options = ("--broker=memory", "--broker-option", "shards=2")
    stored = inside("queue", "declare", "far", *app, *options, "--json", dsn=DSN).json
    assert (stored["broker"], stored["broker_options"]) == ("memory", {"shards": 2})
    shown = inside("queue", "list", dsn=DSN).out
    assert [line.split()[:2] for line in shown.splitlines() if "far" in line] == [["far", "memory"]]
    answer = inside("queue", "declare", "far", *app, dsn=DSN, code=1)
    assert "different settings (broker, broker_options): pass --upsert" in answer.err


def test_the_limits_of_a_job_are_shown() -> None:
    id = push()
    assert inside("job", "show", id, "--json", dsn=DSN).json["limits"] == {}
    ask(DSN, """update chancy.jobs set limits = '{"time_s": 1.5, "x": 1}'""")
    assert inside("job", "show", id, "--json", dsn=DSN).json["limits"] == {"time_s": 1.5}
    assert 'limits        {"time_s": 1.5}' in inside("job", "show", id, dsn=DSN).out
    assert inside("job", "list", "--json", dsn=DSN).json[0]["limits"] == {"time_s": 1.5}


def test_queue_list_reports_what_is_wrong_with_a_row_and_shows_the_others() -> None:
    ask(DSN, "insert into chancy.queues (name, executor, concurrency) values ('odd', 'warp', -3)")
    answer = inside("queue", "list", dsn=DSN)
    assert "default" in answer.out
    assert "there is no executor 'warp'" in answer.err
    (odd,) = [q for q in inside("queue", "list", "--json", dsn=DSN).json if q["name"] == "odd"]
    assert len(odd["wrong"]) == 2


def test_a_long_count_is_capped() -> None:
    ask(
        DSN,
        "insert into chancy.jobs (id, pos, queue, func, state, max_attempts, run_at)"
        " select gen_random_uuid(), n, 'default', 'a.b', 2, 3, now() + interval '1 day'"
        " from generate_series(1, 100001) as n",
    )
    assert "100,000+" in inside("queue", "list", dsn=DSN).out


def test_jobs_are_listed_page_by_page() -> None:
    ids = [push() for _ in range(5)]
    first = inside("job", "list", "--limit", 3, "--json", dsn=DSN).json
    assert [one["id"] for one in first] == ids[:1:-1]
    rest = inside("job", "list", "--limit=3", "--before", first[-1]["id"], "--json", dsn=DSN).json
    assert [one["id"] for one in rest] == ids[1::-1]
    shown = inside("job", "list", "--limit", 3, "--state", "pending", dsn=DSN)
    assert f"--before {ids[2]}" in shown.err
    assert inside("job", "list", "--state", "failed", "--json", dsn=DSN).json == []
    assert inside("job", "list", "--queue", "mail", "--func", "a.b", "--json", dsn=DSN).json == []


def test_a_job_is_shown_cancelled_and_awaited() -> None:
    id = push("--arg", "sep=1", "--args", '{"end": [null, "é"]}', "--delay", 3600, "--priority=9")
    one = inside("job", "show", id, "--json", dsn=DSN).json
    assert one["arguments"] == {"sep": 1, "end": [None, "é"]}
    assert (one["state"], one["priority"], one["errors"]) == ("scheduled", 9, [])
    assert '"sep": 1' in inside("job", "show", id, dsn=DSN).out
    assert "scheduled after" in inside("job", "wait", id, "--timeout=0.1", dsn=DSN, code=1).err
    missing = uuid.uuid4()
    answer = inside("job", "cancel", id, missing, "--json", dsn=DSN, code=1)
    assert answer.json == {id: "cancelled", str(missing): "unknown"}
    assert "finished" in inside("job", "cancel", id, dsn=DSN, code=1).out
    assert "cancelled" in inside("job", "wait", id, dsn=DSN, code=1).out
    waited = inside("job", "wait", id, "--json", dsn=DSN, code=1).json
    assert (waited["id"], waited["state"], waited["result"]) == (id, "cancelled", None)
    for action in ("show", "wait"):
        assert f"no job {missing}" in inside("job", action, missing, dsn=DSN, code=1).err


def test_hostile_text_in_a_row_does_not_reach_the_terminal() -> None:
    id = push()
    evil = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\r\nfake  row"
    error = json.dumps([{"types": [evil], "message": evil, "trace": evil}, "not an object"])
    ask(
        DSN,
        "update chancy.jobs set errors = %s, meta = %s, func = %s where id = %s",
        (error, json.dumps({evil: evil}), f"a.b{evil}", id),
    )
    for answer in (
        inside("job", "list", dsn=DSN),
        inside("job", "show", id, dsn=DSN),
        inside("job", "list", "--json", dsn=DSN),
    ):
        assert "owned" in answer.out
        assert not {*"\x1b\x07\r\u202e"} & {*answer.out}
    assert len(inside("job", "list", dsn=DSN).out.splitlines()) == 2


def test_push_reports_what_is_wrong_with_its_arguments() -> None:
    def refused(*arguments: object) -> str:
        return inside("push", *arguments, dsn=DSN, code=2).err

    assert """'"a@b.c"'""" in refused("json.dumps", "--arg", "obj=a@b.c")
    assert len(refused("json.dumps", "--arg", f"obj={'7' * 5_000}")) < 500
    assert "NAME=JSON" in refused("json.dumps", "--arg", "obj")
    assert "JSON object" in refused("json.dumps", "--args", "[1]")
    assert "one of them" in refused("json.dumps", "--delay=1", "--run-at=2030-01-01T00:00Z")
    assert "no time zone" in refused("json.dumps", "--run-at=2030-01-01T00:00")
    assert "priority" in refused("json.dumps", "--arg=obj=1", "--priority=1000")
    assert "pass validate=False (--no-validate)" in refused("nothing.there")
    # An object that is not closed was not meant as text.
    assert "is not JSON" in refused("json.dumps", "--args", "{")
    assert "a string needs quotes" not in refused("json.dumps", "--args", "{")
    assert "missing a required argument" in refused("textwrap.dedent")


def test_a_push_prints_the_id_though_the_wait_is_in_vain() -> None:
    answer = inside("push", "builtins.print", "--no-validate", "--wait", "0.1", dsn=DSN, code=1)
    (waiting,) = inside("job", "list", "--json", dsn=DSN).json
    assert answer.out.strip() == waiting["id"]


def test_migrate_shows_checks_and_prints() -> None:
    (core, *_) = inside("migrate", "current", "--json", dsn=DSN).json["components"]
    assert core == {
        "component": "core", "plugin": None, "current": tables.HEAD, "head": tables.HEAD,
        "state": "current",
    }  # fmt: skip
    assert inside("migrate", "history", "--json", dsn=DSN).json[-1]["applied"] is True
    assert tables.HEAD in inside("migrate", "history", dsn=DSN).out
    assert tables.HEAD in inside("migrate", "check", dsn=DSN).out
    assert "nothing to do" in inside("migrate", "upgrade", dsn=DSN).out
    assert inside("migrate", "upgrade", "--json", dsn=DSN).json["changed"] == []
    printed = inside("migrate", "sql", "--schema", "somewhere").out
    assert 'create table "somewhere".jobs' in printed or "create table somewhere.jobs" in printed


def test_migrate_down_and_up() -> None:
    refused = inside("migrate", "downgrade", "base", dsn=DSN, code=2)
    assert "--yes" in refused.err
    inside("migrate", "check", dsn=DSN)
    inside("migrate", "downgrade", "base", "--yes", dsn=DSN)
    assert "chancy migrate upgrade" in inside("migrate", "check", dsn=DSN, code=1).err
    checked = inside("migrate", "check", "--json", dsn=DSN, code=1).json
    assert (checked["schema"], checked["up_to_date"]) == ("chancy", False)
    assert "chancy migrate upgrade" in checked["reason"]
    for line in (["queue", "list"], ["job", "list"], ["worker", "list"], ["worker", "health"],
                 ["push", "json.dumps", "--arg", "obj=1"]):  # fmt: skip
        assert "chancy migrate upgrade" in inside(*line, dsn=DSN, code=3).err
    assert "was at nothing" in inside("migrate", "upgrade", dsn=DSN).out
    assert "'0999'" in inside("migrate", "upgrade", "0999", "--component=core", dsn=DSN, code=2).err
    assert (
        "needs the name of a component" in inside("migrate", "upgrade", "0001", dsn=DSN, code=2).err
    )


def test_tables_of_a_newer_version_are_left_alone() -> None:
    ask(DSN, "update chancy.core_version set version_num = '9999'")
    for line in (
        ["migrate", "upgrade"],
        ["migrate", "downgrade", "base", "--yes"],
        ["queue", "list"],
    ):
        assert "9999" in inside(*line, dsn=DSN, code=3).err
    assert "older than the database" in inside("migrate", "check", dsn=DSN, code=1).err


def test_a_role_that_may_not_migrate_gets_a_clear_error() -> None:
    role = f"guest_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(DSN, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} login").format(sql.Identifier(role)))
        try:
            guest = DSN.replace("://postgres@", f"://{role}@")
            answer = inside("migrate", "upgrade", "--schema", "other", dsn=guest, code=2)
            # A code of 1 would mean that the tables are behind.
            for line in (["check"], ["current"], ["history"], ["upgrade"],
                         ["downgrade", "base", "--yes"]):  # fmt: skip
                refused = inside("migrate", *line, dsn=guest, code=2)
                assert "permission denied for schema chancy (SQLSTATE 42501)" in refused.err
            unhealthy = inside("worker", "health", dsn=guest, code=1).err
            assert "the workers cannot be read: permission denied" in unhealthy
        finally:
            connection.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
    assert "permission denied" in answer.err
    assert "create schema" not in answer.err


def test_a_database_that_does_not_exist_is_a_configuration_error() -> None:
    nowhere = f"{DSN.rpartition('/')[0]}/nowhere"
    for line in (["migrate", "check"], ["migrate", "upgrade"], ["queue", "list"]):
        assert 'database "nowhere" does not exist' in inside(*line, dsn=nowhere, code=2).err


def test_a_job_is_explained_and_run_now() -> None:
    inside("queue", "declare", "mail", "--executor", "async", dsn=DSN)
    waiting, id = push("--queue", "mail"), push("--queue", "mail", "--delay", "3600")
    inside("queue", "pause", "mail", dsn=DSN)
    assert inside("job", "why", waiting, dsn=DSN).out.splitlines() == [
        "the queue 'mail' is paused",
        "no worker is running",
    ]
    reasons = inside("job", "why", id, "--json", dsn=DSN).json
    assert [reason["why"] for reason in reasons] == ["scheduled"]
    assert "the job is scheduled in 3" in reasons[0]["text"]
    nobody = str(uuid.uuid4())
    assert "the job does not exist" in inside("job", "why", nobody, dsn=DSN, code=1).out
    assert inside("job", "retry", id, "--json", dsn=DSN).json == {id: "due now"}
    answer = inside("job", "retry", id, nobody, "--json", dsn=DSN, code=1).json
    assert answer == {id: "pending", nobody: "unknown"}
    reasons = inside("job", "why", id, "--json", dsn=DSN).json
    assert [reason["why"] for reason in reasons] == ["queue paused", "no workers", "behind others"]


def test_why_names_a_job_that_has_waited_for_long_without_a_reason() -> None:
    id = push()
    with psycopg.connect(DSN) as connection:
        connection.execute(
            "insert into chancy.workers (id, host, pid, queues)"
            " values (gen_random_uuid(), 'web-1', 17, '{default}')"
        )
        connection.execute("update chancy.jobs set pushed_at = now() - interval '90 s'")
    found = inside("job", "why", id, dsn=DSN).out
    assert re.search("the job has waited for 9[0-9] s and is the next", found)

"""`chancy doctor` on databases that were broken on purpose: each check names its problem."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from chancy import Chancy, Job, Queue
from chancy.app.checkup import rounds
from chancy.app.checkup.examination import Examination
from chancy.app.checkup.rounds import examine
from chancy.plugin.finding import Finding
from tests.support.command import Answer, inside
from tests.support.postgres_fixtures import OwnServer
from tests.support.roles import roles
from tests.support.sql import ask
from tests.support.two_brokers import TwoBrokers
from tests.support.waiting import eventually_sync

Found = list[dict[str, Any]]


@pytest.fixture(scope="session")
def recycled() -> bool:
    return False


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks take as long as they may on a busy machine."""
    monkeypatch.setattr("chancy.app.checkup.rounds.LIMIT_S", 60.0)
    monkeypatch.setattr("chancy.app.checkup.examination._STATEMENT_S", 60.0)
    monkeypatch.setattr("chancy.app.checkup.database._NOTICE_S", 60.0)
    monkeypatch.setattr("chancy.plugin.hooks._EXAMINE_S", 60.0)


def examined(dsn: str, *options: object, code: int | None = 1, **settings: str) -> Found:
    """The findings that need action."""
    answer = inside("doctor", "--json", *options, dsn=dsn, code=code, **settings)
    return [one for one in answer.json if not one["ok"]]


def only(found: Found) -> dict[str, Any]:
    assert len(found) == 1, found
    return found[0]


def worker(
    dsn: str, *, age_s: float = 60, heartbeat_age_s: float = 0, **columns: object
) -> uuid.UUID:
    """Register a worker without a process, which leads."""
    values = {"host": "web-1", "pid": 17, "queues": ["default"], "broken": "{}", "blocked_s": 0.0,
              "unknown": [], "ahead_s": 0.0, "heartbeat_timeout_s": 300.0, **columns}  # fmt: skip
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "insert into chancy.workers"
            " (id, host, pid, queues, broken, blocked_s, unknown, ahead_s, heartbeat_timeout_s,"
            " started_at, beat_at) values"
            " (gen_random_uuid(), %(host)s, %(pid)s, %(queues)s, %(broken)s, %(blocked_s)s,"
            " %(unknown)s, %(ahead_s)s, %(heartbeat_timeout_s)s,"
            " clock_timestamp() - %(age_s)s * interval '1 s',"
            " clock_timestamp() - %(heartbeat_age_s)s * interval '1 s') returning id",
            values | {"age_s": age_s, "heartbeat_age_s": heartbeat_age_s},
        ).fetchone()
        assert row is not None
        connection.execute(
            "insert into chancy.leadership_leases"
            " values ('leader', %s, 3, clock_timestamp(), clock_timestamp() + interval '1 hour')"
            " on conflict do nothing",
            [row[0]],
        )
    found: uuid.UUID = row[0]
    return found


def push(dsn: str, *arguments: object) -> None:
    inside("push", "shop.send", "--no-validate", *arguments, dsn=dsn)


@contextmanager
def transaction(dsn: str, statement: str) -> Generator[psycopg.Connection[Any]]:
    """A session that has run a statement and left its transaction open."""
    with psycopg.connect(make_conninfo(dsn, application_name="report")) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute(statement.encode())
        try:
            yield connection
        finally:
            connection.close()


def test_a_sound_database_has_no_problem(dsn: str) -> None:
    worker(dsn)
    answer = inside("doctor", dsn=dsn)
    lines = answer.out.splitlines()
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert lines[-1] == f"{len(lines) - 1} ok"
    assert "→" not in answer.out
    assert examined(dsn, code=0) == []


def test_a_problem_is_printed_first_with_what_to_do(dsn: str) -> None:
    push(dsn)
    lines = inside("doctor", dsn=dsn, code=1).out.splitlines()
    assert lines[0].startswith("error    queues        queue 'default': 1 due job waits")
    assert lines[1].strip() == "→ chancy worker --queues default, with the --app of its functions"
    assert lines[-1].startswith("1 error, ")


@pytest.mark.parametrize(
    ("dsn", "code", "why"),
    [
        ("postgresql://127.0.0.1:1/shop", 4, "cannot be reached"),
        ("host=127.0.0.1 prt=1", 2, 'did you mean "port"'),
        ("nonsense", 2, "cannot be parsed"),
    ],
)
def test_an_unreachable_database_ends_it_at_once(dsn: str, code: int, why: str) -> None:
    began = time.monotonic()
    answer = inside("doctor", dsn=dsn, code=code)
    assert why in answer.err
    assert answer.out == ""
    assert time.monotonic() - began < 30  # the limit of one check is 60 s here


def test_missing_tables_are_a_finding_and_the_server_is_checked(empty_dsn: str) -> None:
    answer = inside("doctor", "--json", dsn=empty_dsn, code=1)
    schema, *others = answer.json
    assert (schema["about"], schema["severity"]) == ("schema", "error")
    assert schema["todo"] == "chancy migrate upgrade"
    assert {"listener", "clock", "horizon"} <= {one["about"] for one in others}
    assert all(one["ok"] for one in others)


def test_a_database_that_is_not_in_utf8_is_refused(server_dsn: str) -> None:
    name = f"test_latin_{uuid.uuid4().hex[:8]}"
    create = f"create database {name} encoding 'LATIN1' locale 'C' template template0"
    dsn = make_conninfo(server_dsn, dbname=name)
    with psycopg.connect(server_dsn, autocommit=True) as server:
        server.execute(create.encode())
        try:
            for command in ("upgrade", "check"):
                assert "encoding LATIN1" in inside("migrate", command, dsn=dsn, code=2).err
            assert "UTF8" in only(examined(dsn))["found"]
        finally:
            server.execute(f"drop database {name} with (force)".encode())


def test_tables_of_a_newer_version(dsn: str) -> None:
    ask(dsn, "update chancy.pruner_version set version_num = '9999'")
    schema = only(examined(dsn))
    assert (schema["about"], "9999" in schema["found"]) == ("schema", True)
    # A migration by this code would be refused.
    assert schema["todo"] == "run this command with the newer release"


def test_a_listener_that_receives_nothing(dsn: str) -> None:
    found = only(examined(dsn, "--listen-dsn", "postgresql://127.0.0.1:1/shop"))
    assert (found["about"], found["severity"]) == ("listener", "warning")
    assert "--listen-dsn" in found["todo"]


def test_a_role_that_may_only_read(dsn: str) -> None:
    reader = make_conninfo(dsn, options="-c default_transaction_read_only=on")
    found = only(examined(reader))
    assert (found["about"], found["severity"]) == ("writable", "warning")
    assert "default_transaction_read_only is on (source: client)" in found["found"]


def test_a_database_that_may_only_be_read_explains_why_no_worker_leads(dsn: str) -> None:
    worker(dsn, heartbeat_age_s=600)
    worker(dsn, age_s=600)
    ask(dsn, "update chancy.leadership_leases set expires_at = now() - interval '1 hour'")
    name = conninfo_to_dict(dsn)["dbname"]
    ask(dsn, f'alter database "{name}" set default_transaction_read_only = on')
    found = {one["about"]: one for one in examined(dsn)}
    assert found.keys() == {"writable", "workers", "leader"}
    assert found["writable"]["severity"] == "error"
    assert {found[name]["todo"] for name in ("workers", "leader")} == {
        "see writable: correct that first"
    }


def test_a_wrong_clock(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = SimpleNamespace(time=lambda: time.time() - 90, perf_counter=time.perf_counter)
    monkeypatch.setattr("chancy.app.checkup.database.time", wrong)
    found = only(examined(dsn))
    assert found["about"] == "clock"
    assert "is 90.0" in found["found"]
    assert "ahead of this machine" in found["found"]


def test_a_wrong_clock_of_a_worker(dsn: str) -> None:
    worker(dsn, ahead_s=-1.5)
    assert examined(dsn, code=0) == []
    wrong = worker(dsn, ahead_s=-90.0)
    found = only(examined(dsn))
    assert (found["about"], found["todo"]) == ("clock", "synchronize it with NTP")
    assert found["found"] == (
        f"the clock of worker {wrong} (web-1, pid 17) is 90.0 s behind the server"
    )


def test_a_long_transaction_and_the_horizon_that_it_holds(dsn: str) -> None:
    with transaction(dsn, f"select 1 /* {'x' * 300} */") as session:
        horizon, longest = examined(dsn, "--transaction", 0)
        assert (horizon["about"], longest["about"]) == ("horizon", "transactions")
        for found in horizon, longest:
            assert f"pid {session.info.backend_pid} (report, idle in transaction)" in found["found"]
            assert re.search(" m?s ago: select 1 /[*] xxx", found["found"])
            assert "x" * 180 in found["found"]
            assert "x" * 190 not in found["found"]
        assert examined(dsn, code=0) == []
        ask(dsn, horizon["todo"])
        assert examined(dsn, "--transaction", 0, code=0) == []


def test_a_session_that_waits_for_a_lock_is_not_the_one_to_end(dsn: str) -> None:
    lock = "lock table chancy.awaited in access exclusive mode"
    with ThreadPoolExecutor(1) as thread, transaction(dsn, lock) as holder:
        waiting = thread.submit(ask, dsn, "select from chancy.awaited")
        eventually_sync(
            lambda: ask(
                dsn,
                "select pid from pg_stat_activity"
                " where wait_event_type = 'Lock' and datname = current_database()",
            )
        )
        found = examined(dsn, "--transaction", 0.001)
        waits = [one for one in found if "it waits for a lock of pid" in one["found"]]
        end = f"select pg_terminate_backend({holder.info.backend_pid});"
        assert {one["todo"] for one in waits} == {end}
        ask(dsn, end)
        waiting.result(30)


def test_a_role_that_does_not_see_other_transactions(dsn: str) -> None:
    name = f'shy"{uuid.uuid4().hex[:8]}'
    with roles(dsn, [name]):
        inside("migrate", "grants", "--role", name, "--kind", "viewer", "--apply", dsn=dsn)
        shy = make_conninfo(dsn, options=f"-c role={name}")
        found = only(examined(shy, code=4))
        assert (found["about"], found["severity"]) == ("transactions", "unknown")
        ask(dsn, found["todo"])
        assert examined(shy, code=0) == []


def test_prepared_transactions_and_slots_that_nothing_reads(own_server: OwnServer) -> None:
    dsn = own_server(max_prepared_transactions="2", wal_level="logical").dsn()
    ask(dsn, "begin; create table public.t (); prepare transaction 'left'")
    ask(dsn, "select pg_create_physical_replication_slot('standby', true)")
    found = {one["about"]: one for one in examined(dsn, "--transaction", 0)}
    assert found.keys() == {"horizon", "prepared", "slots"}
    assert found["horizon"]["todo"] == "rollback prepared 'left';"
    assert "'left' of postgres" in found["prepared"]["found"]
    ask(dsn, found["horizon"]["todo"])
    slots = only(examined(dsn, "--transaction", 0))
    assert "'standby'" in slots["found"]
    ask(dsn, slots["todo"].removeprefix("start its reader, or "))
    assert examined(dsn, "--transaction", 0, code=0) == []


def test_a_schema_of_the_search_path_in_which_everybody_may_create(dsn: str) -> None:
    ask(dsn, 'create schema "a b"; grant create on schema "a b", public to public')
    assert only(examined(dsn))["about"] == "search_path"
    both = make_conninfo(dsn, options='-c search_path="a\\ b",public')
    found = only(examined(both))
    assert found["found"].startswith('PUBLIC may create functions in "a b", public, which')
    ask(dsn, found["todo"])
    assert examined(both, code=0) == []


def test_a_session_that_waits_for_a_prepared_transaction(own_server: OwnServer) -> None:
    dsn = own_server(max_prepared_transactions="2").dsn()
    ask(dsn, "begin; lock table chancy.awaited; prepare transaction 'left'")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(ask, dsn, "select from chancy.awaited")
        eventually_sync(
            lambda: ask(dsn, "select pid from pg_stat_activity where wait_event_type = 'Lock'")
        )
        found = examined(dsn, "--transaction", 0.001)
        waits = [one for one in found if "it waits for a lock of a prepared" in one["found"]]
        assert waits
        assert all("pg_terminate_backend" not in one["todo"] for one in waits)
        ask(dsn, "rollback prepared 'left'")
        waiting.result(30)


def test_dead_rows_that_no_vacuum_has_removed(dsn: str) -> None:
    ask(dsn, "alter table chancy.jobs set (autovacuum_enabled = off)")
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "insert into chancy.jobs (id, pos, state, queue, func)"
            " select gen_random_uuid(), n, 2, 'q', 'f' from generate_series(1, 60000) n"
        )
        connection.rollback()
        connection.execute("select pg_stat_force_next_flush()")
    found = only(examined(dsn))
    assert found["about"] == "bloat"
    assert "60,000 dead ones; last vacuum: never" in found["found"]
    ask(dsn, found["todo"].partition(";")[0])
    assert examined(dsn, code=0) == []


def test_a_sequence_that_ends_soon(dsn: str) -> None:
    ask(dsn, "select setval('chancy.positions', 7000000000000000000)")
    found = only(examined(dsn))
    assert (found["about"], "positions has used 75.9%" in found["found"]) == ("sequences", True)


def test_missing_partitions_and_rows_in_the_default_one(dsn: str) -> None:
    for day in 0, 1:
        ask(
            dsn,
            "do $$ begin execute format('drop table chancy.finished_jobs_%s',"
            f" to_char((now() at time zone 'UTC')::date + {day}, 'YYYYMMDD')); end $$",
        )
    insert = (
        "insert into chancy.finished_jobs (id, pos, state, queue, priority, func, attempt,"
        " max_attempts, crashes, pushed_at, finished_at) select gen_random_uuid(), 1, 4, 'q', 0,"
        " 'f', 1, 1, 0, now(), now() - {} * interval '1 day'"
    )
    ask(dsn, insert.format(0))
    missing, rows = examined(dsn)
    assert (missing["about"], rows["about"]) == ("partitions", "partitions")
    assert missing["found"].count("finished_jobs_2") == 2
    assert rows["found"] == "finished_jobs_default has about 1 row"
    assert missing["todo"] == rows["todo"] == "chancy prune"
    # A report that is left open in the default partition: its rows have to move.
    with transaction(dsn, "select from chancy.finished_jobs_default"):
        refused = inside("prune", dsn=dsn, code=1)
        assert "another session holds a table of the history" in refused.err
    inside("prune", dsn=dsn)
    ask(dsn, insert.format(3))
    assert examined(dsn, code=0) == []


def test_a_missing_hour_of_a_day_with_partitions_by_the_hour(dsn: str) -> None:
    ask(
        dsn,
        """
        do $$
        declare
          today date := (now() at time zone 'UTC')::date;
          large text := 'chancy.finished_jobs_' || to_char(today - 1, 'YYYYMMDD');
        begin
          execute format('create table %s partition of chancy.finished_jobs'
            ' for values from (%L) to (%L)', large, today - 1 || ' 00:00+00', today || ' 00:00+00');
          update pg_class set reltuples = 20000002 where oid = large::regclass;
          perform chancy.make_days(1);
          execute format('drop table chancy.finished_jobs_%s05', to_char(today + 1, 'YYYYMMDD'));
        end
        $$""",
    )
    found = only(examined(dsn))
    assert re.match(r"finished_jobs_\d{8}05 of finished_jobs is missing", found["found"])
    inside(*found["todo"].split()[1:], dsn=dsn)
    assert examined(dsn, code=0) == []


@pytest.fixture
def served(dsn: str) -> str:
    """A database with a worker of the queue ``default`` that leads."""
    worker(dsn)
    return dsn


def test_workers_that_are_dead_blocked_or_cannot_serve_a_queue(served: str) -> None:
    dead = worker(served, heartbeat_age_s=40, heartbeat_timeout_s=15)
    blocked = worker(served, blocked_s=45.0)
    worker(served, broken=json.dumps({"gpu": "no module 'torch'"}))
    worker(served, heartbeat_age_s=40)
    one, two, three = sorted(examined(served), key=lambda one: one["found"])
    assert one["found"].startswith("1 worker without a heartbeat: ")
    assert one["todo"] == "check these hosts; the leader rescues their jobs within seconds"
    assert re.search(rf"worker {dead} \(web-1, pid 17\) for 4\d s", one["found"])
    assert f"the event loop of worker {blocked}" in two["found"]
    assert three["found"].endswith("cannot serve the queue 'gpu': no module 'torch'")


def test_jobs_of_queues_that_no_worker_runs(served: str) -> None:
    inside("queue", "declare", "mail", dsn=served)
    inside("queue", "declare", "later", dsn=served)
    inside("queue", "pause", "later", dsn=served)
    inside("queue", "declare", "video", "--tag", "gpu=.*", dsn=served)
    for queue in "default", "mail", "later", "typo", "video":
        push(served, "--queue", queue)
    found = {one["found"].split("'")[1]: one for one in examined(served)}
    assert {name: (one["severity"], one["todo"]) for name, one in found.items()} == {
        "mail": ("error", "chancy worker --queues mail, with the --app of its functions"),
        "later": ("warning", "chancy queue resume later"),
        "typo": ("error", "chancy queue declare typo"),
        # A worker without such a tag would not serve it.
        "video": (
            "error",
            "chancy worker --queues video, with the --app of its functions, on a machine or with a "
            "--tag for 'gpu=.*'",
        ),
    }
    assert found["mail"]["found"].endswith("; none of 1 worker serves it")
    assert found["video"]["found"].endswith("serves it, as none has tags for 'gpu=.*'")


async def test_queues_of_other_brokers_are_counted_there(served: str) -> None:
    other = TwoBrokers()
    far = Queue(name="far", broker="memory")
    async with Chancy(served, queues=[far], plugins=[other]) as chancy:
        await chancy.declare(far)
        await chancy.push(Job(func="shop.send").with_queue("far"), validate=False)
        [found] = [one for one in await _examine(chancy) if not one.ok]
        assert found.found == "queue 'far': 1 due job waits; none of 1 worker serves it"
        other.away = True
        [found] = [one for one in await _examine(chancy) if not one.ok]
        assert found.found == "memory: the other broker is away"


async def _examine(chancy: Chancy) -> Sequence[Finding]:
    return await examine(chancy, transaction_s=60, wait_s=300)


def test_a_backlog_of_a_served_queue(served: str) -> None:
    for priority in range(3):
        push(served, "--priority", priority)
    assert examined(served, code=0) == []
    # The oldest is not of the highest priority.
    ask(served, "update chancy.jobs set pushed_at = now() - interval '20 min' where priority = 1")
    found = only(examined(served))
    assert "queue 'default': 3 due jobs wait, the oldest for 20 min; 1 worker" in found["found"]
    assert examined(served, "--wait", 3600, code=0) == []


def test_functions_that_no_worker_knows(served: str) -> None:
    push(served)
    ask(
        served,
        'update chancy.jobs set state = 3, meta = \'{"unknown_function": "2030-01-01"}\'',
    )
    assert examined(served, code=0) == []
    ask(served, "update chancy.workers set unknown = '{shop.send}'")
    found = only(examined(served))
    assert (found["about"], found["severity"]) == ("functions", "error")
    assert found["found"] == "queue 'default': jobs are held, as no worker knows shop.send"
    other = worker(served)
    assert examined(served, code=0) == [], other


def test_scheduled_jobs_that_do_not_become_pending(served: str) -> None:
    push(served, "--delay", 60)
    assert examined(served, code=0) == []
    ask(served, "update chancy.jobs set run_at = now() - interval '40 s'")
    found = only(examined(served))
    assert found["about"] == "promotion"
    assert re.search("has been due for 4[0-9] s", found["found"])
    assert "worker_loop_failed" in found["todo"]


def test_jobs_that_are_never_due_are_not_overdue(dsn: str) -> None:
    never = "select chancy.push('default', 'a.b', run_at => 'infinity', meta => {})"
    ask(dsn, never.format("null"))
    worker(dsn)
    assert examined(dsn, code=0) == []
    ask(dsn, never.format("jsonb_build_object('hold', 'k')"))
    assert inside("queue", "list", dsn=dsn).out.count("default") == 1


def test_workers_without_a_leader(served: str) -> None:
    ask(
        served,
        "update chancy.leadership_leases set expires_at = clock_timestamp() - interval '30 s'",
    )
    found = only(examined(served))
    assert (found["about"], found["severity"]) == ("leader", "error")
    assert re.search(r"ended 3\d s ago", found["found"])
    ask(served, "update chancy.workers set started_at = clock_timestamp()")
    assert examined(served, code=0) == [], "an election is under way"


def test_a_check_that_hangs_does_not_stop_the_others(
    served: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = {"workers", "queues", "functions"}
    check = rounds._checked

    async def limited(examination: Examination, name: str, of: Any) -> Sequence[Finding]:
        monkeypatch.setattr(rounds, "LIMIT_S", 0.5 if name in hang else 60.0)
        return await check(examination, name, of)

    monkeypatch.setattr(rounds, "_checked", limited)
    monkeypatch.setattr("chancy.plugin.hooks._EXAMINE_S", 0.5)
    inside("queue", "declare", "mail", dsn=served)
    with transaction(served, "lock table chancy.workers in access exclusive mode"):
        answer: Answer = inside("doctor", "--json", dsn=served, code=4)
    severities = {one["about"]: one["severity"] for one in answer.json}
    stuck = {name for name, severity in severities.items() if severity == "unknown"}
    assert stuck == {*hang, "chancy.leadership"}
    assert {severities[name] for name in severities.keys() - stuck} == {"ok"}

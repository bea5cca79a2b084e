"""The history of the tables: up, down, up again, by many at once, offline, and on each server."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from chancy.embedded import PostgresServer
from chancy.errors import SchemaMismatch
from chancy.postgres.dsn import KEEPALIVES_IDLE_S
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema import sessions
from chancy.postgres.schema.component import Component
from chancy.testing.structure import structure
from tests.support.waiting import eventually_sync


def test_the_revision_of_the_code_is_the_newest_of_the_history(empty_dsn: str) -> None:
    steps = schema.history(empty_dsn)
    assert steps[-1].revision == schema.HEAD
    assert not any(step.applied for step in steps)
    schema.upgrade(empty_dsn)
    assert all(step.applied for step in schema.history(empty_dsn))


def test_many_processes_at_once(empty_dsn: str) -> None:
    program = f"from chancy.postgres.schema import migrate as schema; schema.upgrade({empty_dsn!r})"
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(3)]
    assert [process.wait(100) for process in processes] == [0, 0, 0]
    assert schema.revisions(empty_dsn) == {"core": schema.HEAD}


def test_a_migration_that_waits_for_another_one_names_its_session(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "_LOG_AFTER_S", 0.0)
    with ThreadPoolExecutor(1) as thread, psycopg.connect(empty_dsn) as connection:
        connection.execute(
            "select pg_advisory_xact_lock(hashtext('chancy migrations'), hashtext('chancy'))"
        )
        waiting = thread.submit(schema.upgrade, empty_dsn)
        expected = f"migration_waits schema=chancy pid={connection.info.backend_pid}: "
        try:
            eventually_sync(lambda: expected in caplog.text)
        finally:
            connection.rollback()
        waiting.result()
    assert caplog.text.count("migration_waits") == 1
    assert schema.revisions(empty_dsn) == {"core": schema.HEAD}


def test_the_server_ends_the_migration_of_a_machine_that_is_gone(empty_dsn: str) -> None:
    with (
        sessions.connected(empty_dsn) as connection,
        sessions.locked(connection, "chancy"),
    ):
        shown = connection.exec_driver_sql("show tcp_keepalives_idle").scalar()
    assert shown == f"{KEEPALIVES_IDLE_S}"


def test_another_schema_has_tables_and_a_version_of_its_own(empty_dsn: str) -> None:
    schema.upgrade(empty_dsn, "one")
    assert schema.revisions(empty_dsn, "two") == {}
    schema.upgrade(empty_dsn, "two")
    schema.downgrade(empty_dsn, "one")
    assert schema.revisions(empty_dsn, "two") == {"core": schema.HEAD}
    assert any("two.jobs" in line for line in structure(empty_dsn, "two"))


def test_the_check_gives_advice(next_release: Component, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.check({"core": schema.HEAD}, "chancy")
    with pytest.raises(SchemaMismatch, match=r"no tables.*chancy migrate upgrade"):
        schema.check({}, "chancy")
    with pytest.raises(SchemaMismatch, match="older than the database"):
        schema.check({"core": "zzzz"}, "chancy")
    monkeypatch.setattr("chancy.postgres.schema.status.CORE", next_release)
    with pytest.raises(SchemaMismatch, match=r"at revision 0001.*needs.*chancy migrate upgrade"):
        schema.check({"core": "0001"}, "chancy")


def test_on_each_server(server: PostgresServer) -> None:
    dsn = server.dsn()
    schema.upgrade(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        worker = "11111111-0000-4000-8000-000000000000"
        connection.execute(
            f"insert into chancy.workers (id, host, pid) values ('{worker}', 'h', 1)"
        )
        connection.execute(
            "insert into chancy.jobs (id, pos, state, queue, func) select gen_random_uuid(), "
            "nextval('chancy.positions'), 0, 'default', 'a.b' from generate_series(1, 10)"
        )
        claimed = connection.execute(
            "select id from chancy.claim("
            "%s, gen_random_uuid(), 'default', 10, 1000000, null, null)",
            (worker,),
        ).fetchall()
        assert len(claimed) == 10
        finished = connection.execute(
            "select count(*) from chancy.finish((select array_agg(id) from chancy.jobs), "
            "(select array_agg(lease) from chancy.jobs), "
            "array_fill(4::smallint, array[10]), null, null, null, null, null)"
        ).fetchone()
        assert finished == (10,)
    schema.downgrade(dsn)

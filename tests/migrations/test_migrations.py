"""The history of the tables: up, down, up again, by many at once, and offline."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from chancy import Chancy
from chancy.errors import SchemaMismatch
from chancy.postgres.dsn import KEEPALIVES_IDLE_S
from chancy.postgres.schema import grants, sessions
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema.component import Component, RoleKind
from chancy.postgres.statements import SEARCH_PATH
from chancy.testing.structure import structure
from tests.migrations.test_shipped import shipped
from tests.support.sql import ask
from tests.support.waiting import eventually_sync

PLANTED = """
create function planted() returns text language plpgsql as $$
begin
  raise 'a planted function was called';
end
$$;
create function format(text, text) returns text return planted();
create function format(text, text, text) returns text return planted();
create function format(text, text, int, int) returns text return planted();
create function starts_with(name, text) returns boolean return planted() is null;
create function same(oid, regnamespace) returns boolean return planted() is null;
create operator = (leftarg = oid, rightarg = regnamespace, function = same);
create function joined(text, regclass) returns text return planted();
create operator || (leftarg = text, rightarg = regclass, function = joined);
"""


def test_the_revision_of_the_code_is_the_newest_of_the_history(empty_dsn: str) -> None:
    steps = schema.history(empty_dsn)
    assert steps[-1].revision == schema.HEAD
    assert not any(step.applied for step in steps)
    schema.upgrade(empty_dsn)
    assert all(step.applied for step in schema.history(empty_dsn))


def test_many_processes_at_once(empty_dsn: str) -> None:
    program = f"from chancy.postgres.schema import migrate as schema; schema.upgrade({empty_dsn!r})"
    processes = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(2)]
    assert [process.wait(100) for process in processes] == [0, 0]
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


def test_limits_of_a_role_do_not_end_a_migration(empty_dsn: str) -> None:
    limited = make_conninfo(empty_dsn, options="-c statement_timeout=60s -c lock_timeout=60s")
    show = "select current_setting('statement_timeout'), current_setting('lock_timeout')"
    with sessions.connected(limited) as connection, sessions.locked(connection, "chancy"):
        assert connection.exec_driver_sql(show).one() == ("0", sessions._LOCK_TIMEOUT)
        # It builds an index, which may wait for others.
        with sessions.connected(limited, autocommit=True) as second:
            assert second.exec_driver_sql(show).one() == ("0", "0")


def test_settings_of_a_database_that_change_what_statements_mean(empty_dsn: str) -> None:
    settings = "-c standard_conforming_strings=off -c default_tablespace=pg_default"
    dsn = make_conninfo(empty_dsn, options=settings)
    schema.upgrade(dsn)
    ask(dsn, "select chancy.push('q', 'shop.mail_2.über1')")
    for func in ("1shop.mail", "shop", "__main__.f", "shop.ma-il"):
        with pytest.raises(
            psycopg.errors.InvalidParameterValue, match="not the path of a function"
        ):
            ask(dsn, f"select chancy.push('q', '{func}')")
    assert ask(dsn, "select chancy.with_meta(null, ' {\"a\": 1}')") == [({"a": 1},)]


def test_functions_and_operators_of_others_are_not_called(empty_dsn: str) -> None:
    """A role that may create in `public` provides some that suit better than those of Postgres."""
    every = Chancy(empty_dsn, plugins=shipped()).hooks.components
    ask(empty_dsn, PLANTED)
    schema.upgrade(empty_dsn, components=every)
    assert schema.revisions(empty_dsn)["core"] == schema.HEAD
    for kind in RoleKind:
        granted = grants.statements(kind, "planted_owner", "chancy", every)
        ask(empty_dsn, ";".join(["begin", "create role planted_owner", *granted, "rollback"]))
    schema.downgrade(empty_dsn, components=every)
    ask(empty_dsn, "drop schema chancy cascade")
    ask(empty_dsn, schema.sql("chancy", every))
    assert schema.revisions(empty_dsn)["core"] == schema.HEAD


def test_behind_a_pooler_a_migration_has_its_own_search_path_too(empty_dsn: str) -> None:
    with sessions.connected(empty_dsn) as connection:
        with connection.begin():  # as on a session of the pooler, which is not changed
            connection.exec_driver_sql("set search_path = public")
        with sessions.locked(connection, "chancy"):
            shown = connection.exec_driver_sql("show search_path").scalar()
    assert shown == SEARCH_PATH


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

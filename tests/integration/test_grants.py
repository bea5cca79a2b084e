"""What is granted: the same by hand and applied, once or twice, to whatever a role is called."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from chancy import Chancy, JobFilter, StatementFailed
from chancy.broker.optional import SqlStore
from chancy.errors import ConfigurationError
from chancy.plugins.cron import Cron
from chancy.plugins.pruner import Prune, Pruner
from chancy.postgres.schema import grants
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema.component import Component, Migrations, RoleKind
from tests.plugins.ledger import Ledger
from tests.plugins.pruner.finished import fill
from tests.support.command import inside
from tests.support.postgres_fixtures import new_database, template_with
from tests.support.roles import COMPONENTS, Cast, P, V, W, roles
from tests.support.sql import ask


@pytest.fixture
def cast(empty_dsn: str) -> Iterator[Cast]:
    made = Cast(empty_dsn)
    with roles(empty_dsn, [*made.names.values()]):
        yield made


@pytest.fixture
def migrated_dsn(request: pytest.FixtureRequest, shipped_template: str) -> Iterator[str]:
    """The DSN of a database with the tables of all components."""
    template = template_with(request.config, shipped_template, Ledger(), Cron())
    with new_database(request, template) as dsn:
        yield dsn


@pytest.fixture
def migrated(migrated_dsn: str) -> Iterator[Cast]:
    made = Cast(migrated_dsn)
    with roles(migrated_dsn, [*made.names.values()]):
        yield made


def access(dsn: str) -> list[Any]:
    """Every right on what is in the schema, and who owns it."""
    return ask(
        dsn, "select relname, relowner, relacl::text from pg_class"
        " where relnamespace = 'chancy'::regnamespace union all"
        " select proname, proowner, proacl::text from pg_proc"
        " where pronamespace = 'chancy'::regnamespace union all"
        " select nspname, nspowner, nspacl::text from pg_namespace where nspname = 'chancy'"
        " union all select a.attrelid::regclass::text || a.attname, 0, a.attacl::text"
        " from pg_attribute a where a.attacl is not null order by 1, 2, 3",
    )  # fmt: skip


@pytest.mark.parametrize("kind", [*RoleKind])
def test_grants_bear_to_be_repeated_and_by_hand_are_the_same(
    migrated: Cast, kind: RoleKind
) -> None:
    options = ("migrate", "grants", "--role", migrated.names[kind], "--kind", kind.value,
               "--app", f"{__name__}:application")  # fmt: skip
    printed = inside(*options, dsn="postgresql://nowhere").out
    ask(migrated.dsn, printed)
    first = access(migrated.dsn)
    assert migrated.names[kind] in str(first) or kind is RoleKind.OWNER
    applied = inside(*options, "--apply", "--json", dsn=migrated.dsn).json
    assert access(migrated.dsn) == first
    assert (applied["role"], applied["kind"], applied["applied"]) == (
        migrated.names[kind], kind.value, True,
    )  # fmt: skip
    assert printed == "".join(f"{one};\n" for one in ("begin", *applied["statements"], "commit"))


def application() -> Chancy:
    return Chancy(plugins=[Ledger(), Cron()])


def test_the_owner_gets_what_others_have_made(cast: Cast) -> None:
    """And migrates on, without any right on the database."""
    schema.upgrade(cast.dsn, components=COMPONENTS, component="core")
    schema.upgrade(cast.dsn, components=COMPONENTS, component="ledger", revision="0001")
    ask(cast.dsn, "create type chancy.ledger_kind as enum ('a')")
    with pytest.raises(ConfigurationError, match="permission denied"):
        schema.upgrade(cast.of(RoleKind.OWNER), components=COMPONENTS)
    cast.grant()
    owners = ask(
        cast.dsn, "select distinct relowner::regrole::text from pg_class"
        " where relnamespace = 'chancy'::regnamespace union select proowner::regrole::text"
        " from pg_proc where pronamespace = 'chancy'::regnamespace union"
        " select typowner::regrole::text from pg_type where typnamespace = 'chancy'::regnamespace",
    )  # fmt: skip
    assert owners == [(cast.names[RoleKind.OWNER],)]
    schema.downgrade(cast.of(RoleKind.OWNER), components=COMPONENTS)
    schema.upgrade(cast.of(RoleKind.OWNER), components=COMPONENTS)


def test_the_grant_to_an_owner_gives_way_to_sessions_that_use_a_table(
    migrated: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = migrated.names[RoleKind.OWNER]
    with psycopg.connect(migrated.dsn) as report:
        report.execute("select from chancy.jobs")
        monkeypatch.setattr("chancy.postgres.schema.sessions.pause", report.rollback)
        grants.apply(migrated.dsn, "chancy", grants.statements(RoleKind.OWNER, owner))
    found = ask(migrated.dsn, "select relowner::regrole::text from pg_class where relname = 'jobs'")
    assert found == [(owner,)]


async def test_tables_that_come_later_are_granted_by_another_run(cast: Cast) -> None:
    few = tuple(one for one in COMPONENTS if one.name != "ledger")
    cast.grant(few)
    schema.upgrade(cast.of(RoleKind.OWNER), components=COMPONENTS)
    read = "select from chancy.ledger_entries"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask(cast.of(W), read)
    cast.grant()
    ask(cast.of(W), read)
    async with Chancy(cast.of(V)) as viewer:
        await viewer.check_tables()
        assert await viewer.find_jobs(JobFilter()) == []
        with pytest.raises(StatementFailed, match="permission denied"):
            await viewer.pause_queue("default")


def test_a_plugin_declares_who_may_do_what_with_its_tables(migrated: Cast) -> None:
    """Instead of: workers write, viewers read. One whose name begins as another's has its own."""
    special = Component(
        Migrations(
            name="ledger_secrets", package="p", head="1",
            grants={W: {"ledger_secrets": "select (a), update (a)"},
                    P: {"ledger_secrets": "insert (a, b)", "ledger_secrets_numbers": "usage"},
                    V: {}},
        ), "x.secrets",
    )  # fmt: skip
    ask(
        migrated.dsn, "create table chancy.ledger_secrets (a int, b int);"
        "create sequence chancy.ledger_secrets_numbers; create sequence chancy.ledger_numbers;"
        "create table chancy.ledger_secrets_version (version_num text)",
    )  # fmt: skip
    everything = (*COMPONENTS, special)
    for kind in (W, P, V):
        made = grants.statements(kind, migrated.names[kind], "chancy", everything)
        grants.apply(migrated.dsn, "chancy", made)
    for statement, allowed in {
        "select a from chancy.ledger_secrets": {W},
        "select b from chancy.ledger_secrets": set(),
        "update chancy.ledger_secrets set a = 1": {W},
        "insert into chancy.ledger_secrets values (1, 2)": {P},
        "select nextval('chancy.ledger_secrets_numbers')": {P},
        "select nextval('chancy.ledger_numbers')": {W},
        "select from chancy.ledger_entries": {W, V},
    }.items():
        for kind in (W, P, V):
            if kind in allowed:
                ask(migrated.of(kind), statement)
            else:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    ask(migrated.of(kind), statement)


async def test_a_worker_whose_pruner_has_rules_may_apply_them(cast: Cast) -> None:
    """And one whose pruner has none may not delete from the history."""
    cast.grant()
    delete = "delete from chancy.finished_jobs"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        ask(cast.of(W), delete)
    pruner = Pruner(rules=[Prune(state="succeeded", keep_last=2)])
    cast.grant(Chancy(cast.dsn, plugins=[Ledger(), Cron(), pruner]).hooks.components)
    with psycopg.connect(cast.dsn, autocommit=True) as connection:
        fill(connection, 5)
    async with Chancy(cast.of(W), plugins=[pruner]) as chancy:
        assert isinstance(chancy.broker, SqlStore)
        assert await pruner.apply(chancy.broker, asyncio.sleep) == [3]
    for kind in (P, V):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(cast.of(kind), delete)


@pytest.mark.parametrize(
    ("kind", "relation", "privileges", "said"),
    [
        (RoleKind.OWNER, "a_x", "select", "kinds of roles"),
        ("boss", "a_x", "select", "'boss'"),
        (W, "jobs", "select", "whose name begins with a_"),
        (W, 'a_"x', "select", "whose name begins with a_"),
        (W, "ab_x", "select", "whose name begins with a_"),
        (W, "a_x", "all", "write privileges like"),
        (W, "a_x", "select; drop table x", "write privileges like"),
        (W, "a_x", "truncate", "write privileges like"),
    ],
)
def test_grants_that_cannot_be_are_refused(
    kind: Any, relation: str, privileges: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Migrations(name="a", package="p", head="1", grants={kind: {relation: privileges}})


@pytest.mark.parametrize(
    ("kind", "table", "privileges", "said"),
    [
        (RoleKind.OWNER, "jobs", "select", "kinds of roles"),
        (W, "a_x", "select", "the tables of the core are jobs, "),
        (W, "core_version", "update", "the tables of the core are jobs, "),
        (W, "jobs", "truncate", "write privileges like"),
    ],
)
def test_needs_of_the_core_that_cannot_be_are_refused(
    kind: RoleKind, table: str, privileges: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Migrations(name="a", package="p", head="1", core_grants={kind: {table: privileges}})


HOSTILE = 'we"ird; drop schema chancy cascade; -- $chancy$ $chancy_$ :x %s {role} \\'


def test_a_hostile_name_of_a_role_is_a_name(migrated_dsn: str) -> None:
    name = f"{HOSTILE[:-2]}{secrets.token_hex(3)[:4]}\\"[-63:]
    psql = shutil.which("psql")
    assert psql, "postgresql-client is not installed"
    with roles(migrated_dsn, [name]):
        for setting in ("on", "off"):
            text = "\n".join(f"{s};" for s in grants.statements(W, name, "chancy", COMPONENTS))
            done = subprocess.run(
                [psql, "-v", "ON_ERROR_STOP=1", "-q", migrated_dsn],
                input=f"set standard_conforming_strings = {setting};\nbegin;\n{text}\ncommit;",
                capture_output=True, text=True, check=False, timeout=20,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, "")
        grants.apply(migrated_dsn, "chancy", grants.statements(W, name, "chancy", COMPONENTS))
        assert schema.revisions(migrated_dsn)["core"] == schema.HEAD
        can = ask(
            migrated_dsn, f"select has_schema_privilege(rolname, 'chancy', 'usage') from pg_roles"
            f" where rolname = {sql.Literal(name).as_string(None)}",
        )  # fmt: skip
        assert can == [(True,)]


@pytest.mark.parametrize(
    "name", ["", "public", "PUBLIC", "none", "pg_monitor", "a\nb", "ü" * 32, "a\0"]
)
def test_a_name_that_can_be_no_role_is_refused(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"is a reserved name|cannot be the name of a role"
    ):
        grants.statements(W, name)


def test_a_refused_grant_gives_the_reason(dsn: str, empty_dsn: str) -> None:
    options = ("migrate", "grants", "--role", "no_such_role_of_ours", "--kind", "worker", "--apply")
    refused = inside(*options, dsn=dsn, code=2)
    assert 'role "no_such_role_of_ours" does not exist' in refused.err
    assert "nothing was granted" in refused.err
    behind = inside(*options, dsn=empty_dsn, code=3)
    assert "chancy migrate upgrade" in behind.err
    assert json.loads(inside(*options[:-1], "--json").out)["applied"] is False

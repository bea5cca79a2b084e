"""The tables of plugins: made, changed, taken back and left behind beside the core's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from chancy import Chancy, Plugin, SchemaMismatch, Worker
from chancy.errors import ConfigurationError
from chancy.postgres.schema import component as parts
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema.component import Component, Migrations
from chancy.postgres.schema.status import SchemaState
from chancy.testing.structure import structure
from tests.migrations.next_release import NEXT
from tests.plugins.auditor import Auditor, Clerk
from tests.plugins.ledger import Ledger
from tests.support.sql import ask
from tests.support.waiting import eventually

PLUGINS: Sequence[Plugin] = (Auditor(), Clerk(), Ledger())
ALL = {"core": schema.HEAD, "ledger": "0002", "auditor": "0001"}


def components(*plugins: Plugin) -> tuple[Component, ...]:
    app = Chancy("postgresql://nowhere", plugins=plugins or PLUGINS, no_default_plugins=True)
    return app.hooks.components


LEDGER = components(Ledger())


def test_up_down_and_up_again(empty_dsn: str) -> None:
    dsn = empty_dsn
    every = components()
    assert [one.name for one in every] == ["ledger", "auditor"]
    schema.upgrade(dsn, components=every)
    assert schema.revisions(dsn) == ALL
    first = structure(dsn)
    assert ask(dsn, "select chancy.ledger_share(25)") == [
        ("12.5000000000000000 in chancy% {of} 12:30",)
    ]
    schema.downgrade(dsn, components=every, component="auditor")
    schema.downgrade(dsn, components=every, component="ledger", revision="0001")
    assert schema.revisions(dsn) == {"core": schema.HEAD, "ledger": "0001"}
    schema.upgrade(dsn, components=every)
    assert structure(dsn) == first
    schema.downgrade(dsn, components=every)
    left = ask(
        dsn, "select relname from pg_class where relnamespace = 'chancy'::regnamespace "
        "and relkind in ('r', 'p', 'S') order by 1"
    )  # fmt: skip
    assert [row[0] for row in left] == ["auditor_version", "core_version", "ledger_version"]
    assert schema.revisions(dsn) == {}
    schema.upgrade(dsn, components=every)
    assert structure(dsn) == first


def begin(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program])


@pytest.mark.chaos
async def test_many_processes_that_begin_at_once(empty_dsn: str) -> None:
    """Held up by the lock until all of them wait for it."""
    program = (
        "from chancy import Chancy; from tests.migrations.test_components import PLUGINS;"
        f"Chancy({empty_dsn!r}, plugins=PLUGINS).sync_migrate()"
    )
    waiting = (
        "select count(*) from pg_stat_activity where application_name = 'chancy migrations'"
        " and datname = current_database() and query ~ 'pg_try_advisory_xact_lock|COMMIT|BEGIN'"
    )
    with psycopg.connect(empty_dsn) as holder:
        holder.execute(
            "select pg_advisory_xact_lock(hashtext('chancy migrations'), hashtext('chancy'))"
        )
        processes = [begin(program) for _ in range(4)]
        await eventually(lambda: ask(empty_dsn, waiting) == [(4,)], timeout=60)
        assert schema.revisions(empty_dsn) == {}
    assert [process.wait(60) for process in processes] == [0] * 4
    assert schema.revisions(empty_dsn).items() >= ALL.items()
    for name in ALL:
        assert ask(empty_dsn, f"select count(*) from chancy.{name}_version") == [(1,)]


def test_the_offline_statements_make_the_same_tables(empty_dsn: str) -> None:
    text = schema.sql(components=components())
    ask(empty_dsn, text)
    assert schema.revisions(empty_dsn) == ALL
    by_hand = structure(empty_dsn)
    schema.downgrade(empty_dsn, components=components())
    schema.upgrade(empty_dsn, components=components())
    assert structure(empty_dsn) == by_hand
    alone = schema.sql(components=components(), component="ledger", revision="0001")
    assert "ledger_entries" in alone
    assert "add column note" not in alone
    assert "create schema" not in alone


def test_a_removed_plugin_leaves_its_tables_and_leaves_no_waiter_stuck(empty_dsn: str) -> None:
    schema.upgrade(empty_dsn, component="core")
    schema.upgrade(empty_dsn, components=LEDGER, component="ledger", revision="0001")
    ask(empty_dsn, "insert into chancy.ledger_entries (worker_id) values (gen_random_uuid())")
    schema.upgrade(empty_dsn)
    schema.check(schema.revisions(empty_dsn), "chancy")
    core, ledger = schema.current(empty_dsn)
    assert core.state is SchemaState.CURRENT
    assert (ledger.name, ledger.found, ledger.head) == ("ledger", "0001", None)
    assert ledger.state is SchemaState.LEFT_BEHIND
    with pytest.raises(ConfigurationError, match=r"'ledger'.*no plugin here.*ledger_version"):
        schema.downgrade(empty_dsn)
    schema.check(schema.revisions(empty_dsn), "chancy")
    schema.upgrade(empty_dsn, components=LEDGER)
    assert ask(empty_dsn, "select note from chancy.ledger_entries") == [("",)]
    found = [one.state for one in schema.current(empty_dsn, components=LEDGER)]
    assert found == [SchemaState.CURRENT, SchemaState.CURRENT]
    ask(empty_dsn, "drop table chancy.ledger_entries, chancy.ledger_version")
    schema.downgrade(empty_dsn)
    assert schema.revisions(empty_dsn) == {}


def test_a_plugin_that_comes_later_is_missing_until_it_is_migrated(dsn: str) -> None:
    found = schema.revisions(dsn)
    assert schema.current(dsn, components=LEDGER)[1].state is SchemaState.MISSING
    said = r"component 'ledger' of the plugin 'tests.ledger' .* missing: run `chancy migrate"
    with pytest.raises(SchemaMismatch, match=said):
        schema.check(found, "chancy", LEDGER)
    schema.upgrade(dsn, components=LEDGER)
    schema.check(schema.revisions(dsn), "chancy", LEDGER)


def test_tables_that_are_newer_than_the_code_are_left_alone(empty_dsn: str) -> None:
    schema.upgrade(empty_dsn, components=LEDGER)
    ask(empty_dsn, "update chancy.ledger_version set version_num = '9999'")
    before = structure(empty_dsn)
    message = r"'tests.ledger'.*9999.*older than the database; upgrade the plugin"
    for refused in (schema.upgrade, schema.downgrade):
        with pytest.raises(SchemaMismatch, match=message):
            refused(empty_dsn, components=LEDGER)
    with pytest.raises(SchemaMismatch, match=message):
        schema.check(schema.revisions(empty_dsn), "chancy", LEDGER)
    assert schema.current(empty_dsn, components=LEDGER)[1].state is SchemaState.AHEAD
    assert structure(empty_dsn) == before


def test_components_with_dependents_are_not_removed(
    empty_dsn: str, next_release: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chancy.postgres.schema.status.CORE", next_release)
    ledger, auditor = components()
    auditor = replace(auditor, migrations=replace(auditor.migrations, core=NEXT))
    every = (ledger, auditor)
    schema.upgrade(empty_dsn, components=every)
    for name, revision, why in (
        ("core", "base", "'auditor'"),
        ("core", "0001", "'auditor'"),
        ("ledger", "base", "'auditor'"),
    ):
        with pytest.raises(ConfigurationError, match=f"{name}.*cannot be downgraded.*{why}"):
            schema.downgrade(empty_dsn, components=every, component=name, revision=revision)
    assert schema.revisions(empty_dsn) == ALL | {"core": NEXT}
    schema.downgrade(empty_dsn, components=every, component="auditor")
    schema.downgrade(empty_dsn, components=every, component="core", revision="0001")
    with pytest.raises(ConfigurationError, match=r"needs the core at revision 0002.*it is at 0001"):
        schema.upgrade(empty_dsn, components=every, component="auditor")


async def test_a_worker_asks_once_and_refuses_to_start_on_old_tables(empty_dsn: str) -> None:
    schema.upgrade(empty_dsn, components=LEDGER, component="core")
    async with Chancy(empty_dsn, plugins=[Ledger()], no_default_plugins=True) as chancy:
        with pytest.raises(SchemaMismatch, match=r"tests\.ledger.*missing"):
            await Worker(chancy, queues=[]).start()
        schema.upgrade(empty_dsn, components=LEDGER, component="ledger", revision="0001")
        with pytest.raises(SchemaMismatch, match=r"at revision 0001, .* needs 0002: run `chancy"):
            await Worker(chancy, queues=[]).start()
        await chancy.migrate()
        async with Worker(chancy, queues=[]) as worker:
            wrote = "select worker_id from chancy.ledger_entries"
            await eventually(lambda: ask(empty_dsn, wrote) == [(worker.worker_id,)])


async def test_a_healthy_start_reads_all_versions_by_one_statement() -> None:
    asked: list[str] = []

    async def fetch(statement: str) -> list[tuple[str, str]]:
        asked.append(statement)
        return [*ALL.items()]

    assert await schema.find_revisions(fetch, "chancy", components()) == ALL
    (statement,) = asked
    for name in ALL:
        assert f'"chancy".{name}_version' in statement


def test_a_revision_that_fails_is_named_and_leaves_the_others_done(
    empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = tmp_path / "broken_tables" / "versions"
    (versions / "0001_half").mkdir(parents=True)
    (versions / "0001_half" / "1.sql").write_text("create table {schema}.half (a int)")
    (versions / "0001_half" / "2.sql").write_text("select 1 / 0")
    (versions / "0001_half.py").write_text(
        "from alembic import context\nrevision = '0001'\ndown_revision = None\n"
        "def upgrade(): context.config.attributes['run_folder'](__file__)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    half = (*LEDGER, made("half", package="broken_tables"))
    with pytest.raises(
        ConfigurationError, match=r"component 'half'.* in 0001_half\.py: .*division by zero"
    ):
        schema.upgrade(empty_dsn, components=half)
    assert schema.revisions(empty_dsn) == {"core": schema.HEAD, "ledger": "0002"}
    assert ask(empty_dsn, "select to_regclass('chancy.half')") == [(None,)]
    (versions / "0001_half" / "2.sql").unlink()
    (versions / "0001_half" / "1.sql").unlink()
    with pytest.raises(FileNotFoundError, match=r"0001_half has no \.sql files"):
        schema.upgrade(empty_dsn, components=half)


def made(name: str, *, package: str, head: str = "0001", core: str = "0001") -> Component:
    return Component(Migrations(name=name, package=package, head=head, core=core), f"x.{name}")


@pytest.mark.parametrize(
    ("component", "said"),
    [
        (made("a", package="nowhere.at.all"), "cannot be imported: No module named 'nowhere'"),
        (made("a", package="tests.nowhere"), "the package 'tests.nowhere' .* no folder 'versions'"),
        (made("a", package="tests.plugins"), "no folder 'versions'"),
        (made("a", package="tests.plugins.ledger.migrations"), "declared as 0001.*end in 0002"),
        (made("a", package="tests.plugins.auditor.migrations", core="9999"), "upgrade chancy here"),
    ],
)
def test_a_history_that_cannot_be_is_refused(dsn: str, component: Component, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as caught:
        schema.upgrade(dsn, components=[component])
    assert "component 'a' of the plugin 'x.a'" in str(caught.value)


def test_a_revision_or_component_that_is_not_there_is_refused(dsn: str) -> None:
    for given, said in (
        ({"revision": "0001"}, "needs the name of a component"),
        ({"component": "nothing"}, "no component 'nothing'.*core, ledger"),
        ({"component": "ledger", "revision": "0999"}, "has no revision '0999': use head, 0001"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            schema.upgrade(dsn, components=LEDGER, **given)


@pytest.mark.parametrize(
    ("owners", "said"),
    [
        ([("a", "core", ()), ("b", "x", ())], "'a' names its component 'core'"),
        ([("a", "x", ()), ("b", "x", ())], "'a' and 'b' both name their component 'x'"),
        ([("a", "x", ["b"]), ("b", "y", ["c"]), ("c", None, ["a"])], "depends on itself"),
    ],
)
def test_components_that_cannot_be_together_are_refused(
    owners: list[tuple[str, str | None, Sequence[str]]], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parts.ordered(
            (
                identifier,
                Migrations(name=name, package="p", head="1") if name else None,
                dependencies,
            )
            for identifier, name, dependencies in owners
        )


@pytest.mark.parametrize("name", ["", "Ledger", "1a", "a-b", 'a"b', "x" * 33])
def test_a_name_that_cannot_be_a_table_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a component"):
        Migrations(name=name, package="p", head="0001")
    with pytest.raises(ConfigurationError, match="cannot be a revision"):
        Migrations(name="a", package="p", head="0001'")


def test_a_table_that_only_looks_like_a_version_is_no_component(dsn: str) -> None:
    ask(dsn, "create table chancy.odd_version (version_num text)")
    assert "odd" not in schema.revisions(dsn)

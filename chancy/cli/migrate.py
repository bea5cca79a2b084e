"""The ``chancy migrate`` commands."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict

import click

from chancy.cli import output
from chancy.cli.exits import NO, complain
from chancy.cli.options import CommandTarget, as_json, on_target
from chancy.errors import ConfigurationError, SchemaMismatch
from chancy.postgres.dsn import redacted
from chancy.postgres.schema import grants as privileges
from chancy.postgres.schema import migrate as tables
from chancy.postgres.schema.component import RoleKind
from chancy.postgres.schema.status import SchemaState

_of_component = click.option(
    "--component", metavar="NAME", help="Only the tables of this component: core, or a plugin's."
)


@click.group()
def migrate() -> None:
    """Create, upgrade and check the tables of the core and of the plugins.

    The plugins are those of --app; without it, the default plugins and those in the settings.

    \b
    Example:
      chancy migrate upgrade --dsn postgresql://localhost/shop
      chancy migrate check || chancy migrate upgrade
    """


@migrate.command()
@on_target
@_of_component
@click.argument("revision", default="head")
@as_json
def upgrade(target: CommandTarget, revision: str, component: str | None, json_: bool) -> None:
    """Upgrade the tables to REVISION (default: head). Safe to run concurrently.

    A REVISION other than head needs --component.

    \b
    Example:
      chancy migrate upgrade
    """
    dsn, schema, components = target.tables()
    before = tables.revisions(dsn, schema)
    tables.upgrade(dsn, schema, components, component=component, revision=revision)
    _report(schema, before, tables.revisions(dsn, schema), json_=json_)


@migrate.command()
@on_target
@_of_component
@click.argument("revision")
@click.option("--yes", is_flag=True, help="Confirm that the dropped data is lost.")
@as_json
def downgrade(
    target: CommandTarget, revision: str, component: str | None, yes: bool, json_: bool
) -> None:
    """Downgrade the tables to REVISION; `base` drops them with all jobs.

    A REVISION other than base needs --component.

    \b
    Example:
      chancy migrate downgrade base --yes
      chancy migrate downgrade 0001 --component core --yes
    """
    dsn, schema, components = target.tables()
    if not yes:
        scope = f"component {component!r} in schema" if component else "schema"
        raise ConfigurationError(
            f"this downgrades {scope} {schema!r} of {redacted(dsn)} to {revision}, and the data "
            "it drops is lost: pass --yes to confirm"
        )
    before = tables.revisions(dsn, schema)
    tables.downgrade(dsn, schema, components, component=component, revision=revision)
    _report(schema, before, tables.revisions(dsn, schema), json_=json_)


@migrate.command()
@on_target
@as_json
def current(target: CommandTarget, json_: bool) -> None:
    """Show the revision of each component, and the revision this version needs.

    \b
    Example:
      chancy migrate current --json
    """
    dsn, schema, components = target.tables()
    standings = tables.current(dsn, schema, components)
    if json_:
        found = [
            {
                "component": standing.name,
                "plugin": standing.plugin,
                "current": standing.found,
                "head": standing.head,
                "state": standing.state,
            }
            for standing in standings
        ]
        output.script({"schema": schema, "components": found})
        return
    output.table(
        ("component", "revision", "head", "state", "plugin"),
        [(s.name, s.found, s.head, s.state, s.plugin) for s in standings],
    )
    left = [s.name for s in standings if s.state is SchemaState.LEFT_BEHIND]
    if left:
        output.line(
            f"\nLeft behind by plugins that are not used: {', '.join(left)}. Their tables stay as "
            "they are.\nAdd a plugin (--app, or `plugins` in the settings) to upgrade or downgrade "
            "its tables,\nor drop them and the table NAME_version by hand."
        )


@migrate.command()
@on_target
@_of_component
@as_json
def history(target: CommandTarget, component: str | None, json_: bool) -> None:
    """List every revision, oldest first, and whether it is applied.

    \b
    Example:
      chancy migrate history
    """
    dsn, schema, components = target.tables()
    revisions = tables.history(dsn, schema, components, component=component)
    if json_:
        output.script([asdict(revision) for revision in revisions])
    else:
        output.table(
            ("component", "revision", "applied", "description"),
            [(r.component, r.revision, r.applied, r.description) for r in revisions],
        )


@migrate.command()
@on_target
@as_json
def check(target: CommandTarget, json_: bool) -> None:
    """Exit 0 if the tables are at the revisions this version needs, else 1.

    \b
    Example:
      chancy migrate check || chancy migrate upgrade
    """
    dsn, schema, components = target.tables()
    found = tables.revisions(dsn, schema)
    try:
        tables.check(found, schema, components)
        why = None
    except SchemaMismatch as error:
        why = str(error)
    if json_:
        output.script({"schema": schema, "up_to_date": why is None, "reason": why})
    elif why is None:
        output.line(f"schema {schema} is up to date: {_list(found)}")
    else:
        complain(why)
    if why is not None:
        sys.exit(NO)


@migrate.command()
@on_target
@_of_component
@click.argument("revision", default="head")
def sql(target: CommandTarget, revision: str, component: str | None) -> None:
    """Print the SQL that creates the tables up to REVISION, for a DBA. Needs no database.

    A REVISION other than head needs --component.

    \b
    Example:
      chancy migrate sql > chancy.sql
    """
    chancy = target.unconnected()
    schema, components = chancy.schema, chancy.hooks.components
    click.echo(tables.sql(schema, components, component=component, revision=revision))


@migrate.command()
@on_target
@click.option("--role", required=True, metavar="NAME", help="The role; it must exist.")
@click.option(
    "--kind",
    required=True,
    type=click.Choice([kind.value for kind in RoleKind]),
    help="The purpose of the role.",
)
@click.option("--apply", is_flag=True, help="Also run the statements, in one transaction.")
@as_json
def grants(target: CommandTarget, role: str, kind: str, apply: bool, json_: bool) -> None:
    """Print the GRANT statements a role needs. Needs no database without --apply.

    An owner migrates and prunes, a worker runs jobs, a producer pushes jobs, a viewer reads. Run
    this again after each migration: new tables have no grants.

    \b
    Example:
      chancy migrate grants --role shop_worker --kind worker | psql shop
      chancy migrate grants --role shop_worker --kind worker --apply
    """
    chancy = target.application() if apply else target.unconnected()
    schema, components = chancy.schema, chancy.hooks.components
    found = privileges.statements(RoleKind(kind), role, schema, components)
    if apply:
        if kind != RoleKind.OWNER:
            tables.check(tables.revisions(chancy.dsn, schema), schema, components)
        privileges.apply(chancy.dsn, schema, found)
    if json_:
        output.script(
            {"schema": schema, "role": role, "kind": kind, "applied": apply, "statements": found}
        )
    else:
        click.echo("\n".join(f"{statement};" for statement in ("begin", *found, "commit")))


def _list(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {revision}" for name, revision in found.items())


def _report(
    schema: str, before: Mapping[str, str], after: Mapping[str, str], *, json_: bool
) -> None:
    changed = [
        name for name in dict.fromkeys([*after, *before]) if before.get(name) != after.get(name)
    ]
    if json_:
        changes = [
            {"component": name, "was": before.get(name), "is": after.get(name)} for name in changed
        ]
        output.script({"schema": schema, "changed": changes})
        return
    for name in changed:
        output.line(
            f"schema {schema}: {name} is at {after.get(name, 'nothing')}, "
            f"was at {before.get(name, 'nothing')}"
        )
    if not changed:
        present = _list(after) or "no tables"
        output.line(f"schema {schema}: nothing to do ({present})")

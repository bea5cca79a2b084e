"""``chancy migrate``."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager

import click

from chancy.cli import output
from chancy.cli.exits import NO, complain
from chancy.cli.options import Target, as_json, on_target
from chancy.errors import ConfigurationError, SchemaMismatch
from chancy.postgres import schema as tables
from chancy.postgres.dsn import redacted


@click.group()
def migrate() -> None:
    """Make, change and check the tables.

    \b
    Example:
      chancy migrate upgrade --dsn postgresql://localhost/shop
      chancy migrate check || chancy migrate upgrade
    """


@migrate.command()
@on_target
@click.argument("revision", default="head")
def upgrade(target: Target, revision: str) -> None:
    """Bring the tables up to REVISION (default: head). Several callers at once are safe.

    \b
    Example:
      chancy migrate upgrade
    """
    dsn, schema = target.place()
    _check_revision(revision, schema, words=("head",))
    before = tables.current(dsn, schema)
    _check_known(before, schema)
    with _refusals():
        tables.upgrade(dsn, schema, revision)
    after = tables.current(dsn, schema)
    if before == after:
        output.line(f"schema {schema} is at {after}: nothing to do")
    else:
        output.line(f"schema {schema} is at {after}, was at {before or 'nothing'}")


@migrate.command()
@on_target
@click.argument("revision")
@click.option("--yes", is_flag=True, help="Do not ask: what the revision drops is lost.")
def downgrade(target: Target, revision: str, yes: bool) -> None:
    """Take the tables back to REVISION; `base` drops them with all jobs.

    \b
    Example:
      chancy migrate downgrade base --yes
    """
    dsn, schema = target.place()
    _check_revision(revision, schema, words=("base",))
    if not yes:
        raise ConfigurationError(
            f"this takes schema {schema!r} of {redacted(dsn)} back to {revision}, and the data "
            "that it drops is lost: give --yes if that is meant"
        )
    before = tables.current(dsn, schema)
    if before is not None:
        _check_known(before, schema)
        with _refusals():
            tables.downgrade(dsn, schema, revision)
    after = tables.current(dsn, schema)
    output.line(f"schema {schema} is at {after or 'nothing'}, was at {before or 'nothing'}")


@migrate.command()
@on_target
@as_json
def current(target: Target, json_: bool) -> None:
    """Show the revision of the tables, and the one that this version needs.

    \b
    Example:
      chancy migrate current --json
    """
    dsn, schema = target.place()
    found = tables.current(dsn, schema)
    if json_:
        output.script({"schema": schema, "current": found, "head": tables.HEAD})
    else:
        output.line(f"schema {schema} is at {found or 'nothing'}; head is {tables.HEAD}")


@migrate.command()
@on_target
@as_json
def history(target: Target, json_: bool) -> None:
    """List every revision, oldest first, and whether the database has it.

    \b
    Example:
      chancy migrate history
    """
    dsn, schema = target.place()
    steps = tables.history(dsn, schema)
    if json_:
        output.script(
            [
                {"revision": one.revision, "description": one.description, "applied": one.applied}
                for one in steps
            ]
        )
    else:
        output.table(
            ("revision", "applied", "description"),
            [(one.revision, one.applied, one.description) for one in steps],
        )


@migrate.command()
@on_target
def check(target: Target) -> None:
    """Exit 0 if the tables are at the revision of this version, else 1.

    \b
    Example:
      chancy migrate check || chancy migrate upgrade
    """
    dsn, schema = target.place()
    try:
        tables.check(tables.current(dsn, schema), schema)
    except SchemaMismatch as error:
        complain(str(error))
        sys.exit(NO)
    output.line(f"schema {schema} is at {tables.HEAD}, as this version needs")


@migrate.command()
@on_target
@click.argument("revision", default="head")
def sql(target: Target, revision: str) -> None:
    """Print the statements from nothing up to REVISION, for a DBA. Needs no database.

    \b
    Example:
      chancy migrate sql > chancy.sql
    """
    schema = target.schema()
    _check_revision(revision, schema, words=("head",))
    click.echo(tables.sql(schema, revision))


def _check_revision(revision: str, schema: str, *, words: tuple[str, ...]) -> None:
    known = [step.revision for step in tables.history(None, schema)]
    if revision not in (*known, *words):
        raise ConfigurationError(
            f"there is no revision {revision!r}: use {', '.join((*words, *known))}"
        )


def _check_known(found: str | None, schema: str) -> None:
    """Raise `SchemaMismatch` if a newer version of chancy has made the tables."""
    if found is not None and found not in {one.revision for one in tables.history(None, schema)}:
        tables.check(found, schema)


@contextmanager
def _refusals() -> Generator[None]:
    """What the database says against a migration, without the statement and the trace."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        raise ConfigurationError(f"the database refused the migration: {error.orig}") from error

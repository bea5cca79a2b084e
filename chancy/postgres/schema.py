"""The tables: bringing them up to date, and refusing to work on others.

Alembic does the work and is imported only here, when somebody migrates. A worker's check at start
is one SELECT.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chancy.errors import BrokerError, BrokerUnavailable, SchemaMismatch, StatementFailed
from chancy.names import check_schema_name
from chancy.postgres.drivers.base import Row
from chancy.postgres.dsn import parse
from chancy.postgres.statements import placeholders

if TYPE_CHECKING:
    import psycopg
    from alembic.config import Config

#: The revision that this version of chancy works with.
HEAD = "0003"
#: The table that holds the revision; each component with tables of its own has one like it.
VERSION_TABLE = "core_version"

# Alembic's `context` and `op` are global to a process.
_alembic = threading.Lock()

_UNDEFINED_TABLE = ("42P01", "3F000")


@dataclass(frozen=True, slots=True)
class Revision:
    """One step of the history."""

    revision: str
    description: str
    applied: bool


def upgrade(dsn: str, schema: str = "chancy", revision: str = "head") -> None:
    """Bring the tables up to a revision. Several callers at once are safe: one does the work."""
    with _alembic, _connected(dsn, schema) as config:
        _command("upgrade")(config, revision)


def downgrade(dsn: str, schema: str = "chancy", revision: str = "base") -> None:
    """Take the tables back to a revision; ``base`` drops them with all jobs."""
    with _alembic, _connected(dsn, schema) as config:
        _command("downgrade")(config, revision)


def sql(schema: str = "chancy", revision: str = "head") -> str:
    """The statements of an upgrade from nothing, for somebody who runs them by hand."""
    output = io.StringIO()
    with _alembic:
        _command("upgrade")(_config(schema, output=output), revision, sql=True)
    return output.getvalue()


def current(dsn: str, schema: str = "chancy") -> str | None:
    """The revision of the tables; None if there are none."""
    import psycopg

    with _session(dsn) as connection:
        try:
            return revision_of(connection.execute(version(schema).encode()).fetchall())
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None


def history(dsn: str | None, schema: str = "chancy") -> Sequence[Revision]:
    """Every revision, oldest first, and whether the database has it (False without a DSN)."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(_config(schema))
    at = current(dsn, schema) if dsn else None
    steps = list(reversed(list(scripts.walk_revisions())))
    names = [step.revision for step in steps]
    done = names.index(at) + 1 if at in names else 0
    return [
        Revision(step.revision, (step.doc or "").strip(), number < done)
        for number, step in enumerate(steps)
    ]


def version(schema: str) -> str:
    """The statement that reads the revision."""
    return f"select version_num from {placeholders(schema)['schema']}.{VERSION_TABLE}"  # noqa: S608


def revision_of(rows: Sequence[Row]) -> str | None:
    """The revision in the rows of `version`; None if there are none."""
    return str(rows[0][0]) if rows else None


def is_missing(error: BrokerError) -> bool:
    """Whether a statement failed because the tables are not there."""
    return isinstance(error, StatementFailed) and error.sqlstate in _UNDEFINED_TABLE


def check(found: str | None, schema: str) -> None:
    """Raise `SchemaMismatch` unless the database is at the revision of this version."""
    if found == HEAD:
        return
    if found is None:
        raise SchemaMismatch(
            f"schema {schema!r} of the database has no tables of chancy: run `chancy migrate "
            "upgrade`, or `await chancy.migrate()`"
        )
    if found in _known(schema):
        raise SchemaMismatch(
            f"the tables in schema {schema!r} are at revision {found}, this version of chancy "
            f"needs {HEAD}: run `chancy migrate upgrade`"
        )
    raise SchemaMismatch(
        f"the tables in schema {schema!r} are at revision {found}, which this version of chancy "
        f"(revision {HEAD}) does not know: it is older than the database; upgrade chancy here"
    )


def _known(schema: str) -> set[str]:
    return {step.revision for step in history(None, schema)}


def _command(name: str) -> Callable[..., Any]:
    from alembic import command

    function: Callable[..., Any] = getattr(command, name)
    return function


def _config(schema: str, *, output: io.StringIO | None = None) -> Config:
    from alembic.config import Config

    import chancy.migrations

    config = Config(output_buffer=output) if output else Config()
    folder = Path(next(iter(chancy.migrations.__path__)))
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes.update(
        schema=check_schema_name(schema),
        placeholders=placeholders(schema),
        version_table=VERSION_TABLE,
    )
    return config


@contextmanager
def _session(dsn: str) -> Generator[psycopg.Connection[Any]]:
    import psycopg

    conninfo = parse(dsn).conninfo(application_name="chancy migrations")
    try:
        connection = psycopg.connect(conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        raise BrokerUnavailable(f"{parse(dsn).place} cannot be reached: {error}") from error
    with connection:
        yield connection


@contextmanager
def _connected(dsn: str, schema: str) -> Generator[Config]:
    """A configuration whose revisions run on one session of the database."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    config = _config(schema)
    with _session(dsn) as session:
        session.autocommit = False
        engine = create_engine("postgresql+psycopg://", creator=lambda: session, poolclass=NullPool)
        with engine.connect() as connection:
            config.attributes["connection"] = connection
            yield config
        engine.dispose()

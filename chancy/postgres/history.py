"""What Alembic does for us: the revisions of one component, and running them.

Alembic is imported here alone, and only when somebody migrates.
"""

from __future__ import annotations

import importlib.util
import io
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.names import check_schema_name
from chancy.postgres.component import CORE_NAME, Component
from chancy.postgres.dsn import parse
from chancy.postgres.statements import placeholders

if TYPE_CHECKING:
    import psycopg
    from alembic.config import Config
    from sqlalchemy.engine import Connection

# Alembic's `context` and `op` are global to a process.
_alembic = threading.Lock()


@dataclass(frozen=True, slots=True)
class Step:
    """One revision as its file has it."""

    revision: str
    description: str


def steps(component: Component) -> Sequence[Step]:
    """Every revision of a component, oldest first.

    :raises ConfigurationError: the files are not there, or are no linear history up to its head.
    """
    from alembic.script import ScriptDirectory
    from alembic.script.revision import RevisionError
    from alembic.util import CommandError

    scripts = ScriptDirectory.from_config(_config(component, "chancy"))
    try:
        found = [Step(s.revision, (s.doc or "").strip()) for s in scripts.walk_revisions()]
    except (CommandError, RevisionError) as error:
        raise ConfigurationError(f"{component}: its revisions cannot be read: {error}") from error
    heads = scripts.get_heads()
    if heads != [component.head] or len(scripts.get_bases()) != 1:
        raise ConfigurationError(
            f"{component}: its newest revision is said to be {component.head}, and its files end "
            f"in {', '.join(heads) or 'nothing'}: a history is one line, whose end is the head"
        )
    return found[::-1]


def known(component: Component) -> Sequence[str]:
    """The revisions of a component, oldest first."""
    return [step.revision for step in steps(component)]


def run(
    direction: Literal["upgrade", "downgrade"],
    component: Component,
    schema: str,
    revision: str,
    connection: Connection,
) -> None:
    """Run revisions in the transaction that the connection is in.

    :raises ConfigurationError: there is no such way.
    """
    from alembic import command
    from alembic.util import CommandError

    config = _config(component, schema)
    config.attributes["connection"] = connection
    move = command.upgrade if direction == "upgrade" else command.downgrade
    with _alembic:
        try:
            move(config, revision)
        except CommandError as error:
            raise ConfigurationError(f"{component}: {error}") from error


def offline(component: Component, schema: str, revision: str) -> str:
    """The statements of an upgrade from nothing."""
    from alembic import command

    output = io.StringIO()
    with _alembic:
        command.upgrade(_config(component, schema, output=output), revision, sql=True)
    return output.getvalue()


def _config(component: Component, schema: str, *, output: io.StringIO | None = None) -> Config:
    from alembic.config import Config

    import chancy.migrations

    config = Config(output_buffer=output) if output else Config()
    # Every component runs under the env.py of the core; a name may hold any other character.
    folder = Path(next(iter(chancy.migrations.__path__)))
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    config.set_main_option("version_locations", str(folder_of(component)).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    config.attributes.update(
        schema=check_schema_name(schema),
        placeholders=placeholders(schema),
        version_table=component.version_table,
        makes_schema=component.name == CORE_NAME,
    )
    return config


def folder_of(component: Component) -> Path:
    """The folder of the revisions of a component."""
    package = component.migrations.package
    try:
        spec = importlib.util.find_spec(package)
    except ImportError as error:
        raise ConfigurationError(
            f"{component}: its package {package!r} cannot be imported: {error}"
        ) from error
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        folder = Path(place) / "versions"
        if folder.is_dir():
            return folder
    raise ConfigurationError(
        f"{component}: there is no folder 'versions' in the package {package!r} "
        f"({', '.join(places) or 'not found'}): does its distribution contain it, unpacked?"
    )


@contextmanager
def session(dsn: str) -> Generator[psycopg.Connection[Any]]:
    """A session of the database that commits by itself."""
    import psycopg

    conninfo = parse(dsn).conninfo(application_name="chancy migrations")
    try:
        connection = psycopg.connect(conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        raise BrokerUnavailable(f"{parse(dsn).place} cannot be reached: {error}") from error
    with connection:
        yield connection


@contextmanager
def connected(dsn: str) -> Generator[Connection]:
    """The same, as Alembic wants it, in transactions of its own."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    with session(dsn) as one:
        one.autocommit = False
        engine = create_engine("postgresql+psycopg://", creator=lambda: one, poolclass=NullPool)
        with engine.connect() as connection:
            yield connection
        engine.dispose()


@contextmanager
def locked(connection: Connection, schema: str) -> Generator[None]:
    """A transaction in which nobody else migrates this schema.

    Two deploys may migrate at once: the second waits here and then finds nothing to do. The lock
    is one of the transaction, so that it holds behind a pooler as well.
    """
    from sqlalchemy import text

    with connection.begin():
        connection.execute(
            text("select pg_advisory_xact_lock(hashtext('chancy migrations'), hashtext(:schema))"),
            {"schema": schema},
        )
        yield


@contextmanager
def refusals(component: Component) -> Generator[None]:
    """What the database says against a migration, without the statement."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) is None:
            raise BrokerUnavailable(
                f"the connection broke while {component} was migrated; nothing of it was kept: "
                f"{error.orig}"
            ) from error
        raise ConfigurationError(
            f"the database refused the migration of {component}: {error.orig}"
        ) from error

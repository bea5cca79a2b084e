"""Sessions that change tables: one at a time for a schema, and out of the way of those who work."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from chancy.errors import BrokerUnavailable, ConfigurationError
from chancy.postgres.drivers import sqlstates
from chancy.postgres.dsn import parse
from chancy.postgres.schema.component import Component

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.engine import Connection

# Whoever waits for a table keeps all others from it that come later: so a migration waits for half
# a second, gives way, and comes again.
_LOCK_TIMEOUT = "500ms"
_LOCK_NOT_AVAILABLE = "55P03"


class TableHeld(ConfigurationError):
    """Somebody holds a table that a migration must have for itself; nothing was kept."""


@contextmanager
def session(dsn: str) -> Generator[psycopg.Connection[Any]]:
    """A session of the database that commits by itself."""
    import psycopg

    conninfo = parse(dsn).conninfo(application_name="chancy migrations")
    try:
        connection = psycopg.connect(conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        raise BrokerUnavailable(
            f"{parse(dsn).place} cannot be reached: {sqlstates.one_line(error)}"
        ) from error
    with connection:
        yield connection


@contextmanager
def connected(dsn: str, *, autocommit: bool = False) -> Generator[Connection]:
    """The same, as Alembic wants it, in transactions of its own unless it is to commit by itself.

    Read committed whatever the database's default is: between two statements it holds no snapshot,
    for which the building of an index would wait.
    """
    import psycopg
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    with session(dsn) as one:
        one.autocommit = autocommit
        one.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: one,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT" if autocommit else "READ COMMITTED",
        )
        with engine.connect() as connection:
            yield connection
        engine.dispose()


@contextmanager
def locked(connection: Connection, schema: str) -> Generator[None]:
    """A transaction in which nobody else migrates this schema.

    Two deploys may migrate at once: the second waits here and then finds nothing to do. The lock
    is one of the transaction, so that it holds behind a pooler as well. It is asked for again and
    again: a statement that waits for it holds a snapshot, and the first might build an index, which
    waits for all snapshots. The transaction may stand idle for as long as that takes.
    """
    from sqlalchemy import text

    ask = text(
        "select pg_try_advisory_xact_lock(hashtext('chancy migrations'), hashtext(:schema)),"
        " set_config('lock_timeout', :wait, true)"
    )
    idle = text(
        "select set_config(name, '0', true) from pg_settings"
        " where name in ('idle_in_transaction_session_timeout', 'transaction_timeout')"
    )
    while True:
        with connection.begin():
            if connection.execute(ask, {"schema": schema, "wait": _LOCK_TIMEOUT}).one()[0]:
                connection.execute(idle)
                yield
                return
        time.sleep(random.uniform(0.05, 0.2))


@contextmanager
def refusals(component: Component) -> Generator[None]:
    """What the database says against a migration, without the statement."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        sqlstate = getattr(error.orig, "sqlstate", None)
        if sqlstate is None:
            raise BrokerUnavailable(
                f"the connection broke while {component} was migrated; what was not committed is "
                f"undone, so migrate again: {error.orig}"
            ) from error
        if sqlstate == _LOCK_NOT_AVAILABLE:
            raise TableHeld(
                f"a table that the migration of {component} must have for itself is held by "
                f"others, see pg_locks; nothing was kept: {error.orig}"
            ) from error
        raise ConfigurationError(
            f"the database refused the migration of {component}: {error.orig}"
        ) from error

"""Sessions for migrations: one at a time for a schema, and without blocking workers for long."""

from __future__ import annotations

import logging
import math
import random
import time
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chancy.errors import LOCK_NOT_AVAILABLE, BrokerUnavailable, ConfigurationError
from chancy.postgres.dsn import (
    KEEPALIVES_COUNT,
    KEEPALIVES_IDLE_S,
    KEEPALIVES_INTERVAL_S,
    parse,
)
from chancy.postgres.schema import status
from chancy.postgres.schema.component import Component
from chancy.postgres.statements import SEARCH_PATH, SECURE

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy.engine import Connection

logger = logging.getLogger("chancy.migrations")

# A session that waits for the lock on a table blocks all that request one after it. So a migration
# waits for half a second, releases its locks, and retries.
_LOCK_TIMEOUT = "500ms"
#: Seconds for which it retries.
PATIENCE_S = 60.0
# A second connection may work for long while the first one is idle in a transaction.
_DISABLE_TIMEOUTS = (
    "select set_config(name, '0', {local}) from pg_settings where name in"
    " ('idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout',"
    " 'transaction_timeout')"
)
_SECURE_SESSION = (
    f"select pg_catalog.set_config('search_path', '{SEARCH_PATH}', false)"
    " where pg_catalog.pg_backend_pid() operator(pg_catalog.=) {pid}"
)
#: Seconds of waiting for another migration after which that is logged.
_LOG_AFTER_S = 5.0


class TableHeld(ConfigurationError):
    """A migration could not get the lock on a table; it was rolled back."""


def pause() -> None:
    """Let others use a table, before it is locked again."""
    time.sleep(random.uniform(0.5, 1.5))


@contextmanager
def session(dsn: str) -> Generator[psycopg.Connection[Any]]:
    """A psycopg connection in autocommit mode. Its errors become those of chancy.

    Its search path is `SEARCH_PATH`, except behind a pooler: transactions begin with `SECURE`.
    """
    import psycopg

    from chancy.postgres.drivers.psycopg import failed_statement, refused_session

    found = parse(dsn)
    try:
        connection = psycopg.connect(
            found.conninfo(application_name="chancy migrations"), autocommit=True
        )
    except psycopg.Error as error:
        raise refused_session(found.place, error) or error from error
    try:
        with connection:
            # A pooler, whose sessions other clients use, too, sends another pid.
            pid = connection.info.backend_pid
            connection.execute(_SECURE_SESSION.format(pid=pid).encode())
            # Not known behind some proxies.
            status.check_encoding(connection.info.parameter_status("server_encoding") or "UTF8")
            yield connection
    except psycopg.Error as error:
        raise failed_statement(found.place, error) from error


@contextmanager
def connected(dsn: str, *, autocommit: bool = False) -> Generator[Connection]:
    """An SQLAlchemy connection for Alembic.

    Always READ COMMITTED: between two statements it holds no snapshot, for which the build of an
    index would wait.
    """
    import psycopg
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    with session(dsn) as psycopg_connection:
        psycopg_connection.autocommit = autocommit
        psycopg_connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        pid = psycopg_connection.info.backend_pid
        if autocommit:
            # The build of an index waits for transactions. Behind a pooler, which sends another
            # pid, the settings would be those of other clients, too.
            disable = f"{_DISABLE_TIMEOUTS.format(local='false')} and pg_backend_pid() = {pid}"
            psycopg_connection.execute(disable.encode())
        engine = create_engine(
            "postgresql+psycopg://",
            creator=lambda: psycopg_connection,
            poolclass=NullPool,
            use_native_hstore=False,  # its statement would come before the first transaction
            isolation_level="AUTOCOMMIT" if autocommit else "READ COMMITTED",
        )
        with engine.connect() as connection:
            yield connection
        engine.dispose()


@contextmanager
def locked(connection: Connection, schema: str) -> Generator[None]:
    """A transaction that holds the migration lock of a schema.

    Two deploys may migrate at once: the second waits here and then has nothing to do. The lock
    belongs to the transaction, so that it also works behind a pooler. It is polled: a statement
    that waits for it holds a snapshot, and the other migration may build an index, which waits for
    all snapshots. Timeouts are disabled in the transaction, as an index may take long.
    """
    from sqlalchemy import text

    acquire = text(
        "select pg_try_advisory_xact_lock(hashtext('chancy migrations'), hashtext(:schema))"
    )
    find_holder = text(
        "select pid from pg_locks where locktype = 'advisory' and granted and objsubid = 2"
        " and classid::bigint = hashtext('chancy migrations')::bigint & 4294967295"
        " and objid::bigint = hashtext(:schema)::bigint & 4294967295"
        " and database = (select oid from pg_database where datname = current_database())"
    )
    # This setting names the tablespace that is the default anyway, and with it the server refuses
    # to create partitioned tables.
    clear_tablespace = text(
        "select set_config('default_tablespace', '', true) from pg_database d"
        " join pg_tablespace t on t.oid = d.dattablespace where d.datname = current_database()"
        " and t.spcname = current_setting('default_tablespace')"
    )
    # Without timeouts, only the server's keepalives end the session of a machine that is gone: by
    # default after two hours, during which it would hold its locks.
    limit = text(
        f"select set_config('lock_timeout', '{_LOCK_TIMEOUT}', true),"
        f" set_config('tcp_keepalives_idle', '{KEEPALIVES_IDLE_S}', true),"
        f" set_config('tcp_keepalives_interval', '{KEEPALIVES_INTERVAL_S}', true),"
        f" set_config('tcp_keepalives_count', '{KEEPALIVES_COUNT}', true)"
    )
    log_at = time.monotonic() + _LOG_AFTER_S
    while True:
        with connection.begin():
            connection.exec_driver_sql(SECURE)
            if connection.execute(acquire, {"schema": schema}).scalar():
                connection.exec_driver_sql(_DISABLE_TIMEOUTS.format(local="true"))
                connection.execute(clear_tablespace)
                connection.execute(limit)
                yield
                return
            if time.monotonic() > log_at:
                log_at = math.inf
                logger.warning(
                    "migration_waits schema=%s pid=%s: the session of this pid on the server "
                    "migrates the schema, too; if its program is gone, end it by "
                    "pg_terminate_backend",
                    schema,
                    connection.execute(find_holder, {"schema": schema}).scalar(),
                )
        time.sleep(random.uniform(0.05, 0.2))


@contextmanager
def refusals(component: Component) -> Generator[None]:
    """Convert the database's errors during a migration, and leave out the statement."""
    from sqlalchemy.exc import DBAPIError

    try:
        yield
    except DBAPIError as error:
        sqlstate = getattr(error.orig, "sqlstate", None)
        if sqlstate is None:
            raise BrokerUnavailable(
                f"the connection was lost during the migration of {component}; uncommitted changes "
                f"were rolled back, so migrate again: {error.orig}"
            ) from error
        if sqlstate == LOCK_NOT_AVAILABLE:
            raise TableHeld(
                f"the migration of {component} could not lock a table that other sessions hold "
                f"(see pg_locks), and was rolled back: {error.orig}"
            ) from error
        raise ConfigurationError(
            f"the database rejected the migration of {component}{_place(error)}: {error.orig}"
        ) from error


def _place(error: BaseException) -> str:
    """The file of the revision that raised, for an error message."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    files = (Path(frame.f_code.co_filename) for frame in frames)
    return next((f" in {file.name}" for file in files if file.parent.name == "versions"), "")

"""The benchmark's own database session, which counts its statements."""

from __future__ import annotations

from typing import Any, LiteralString, Self

import psycopg

#: The application name of the benchmark's own sessions.
APPLICATION = "benchmark"

_TRANSACTIONS = """
select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"""
_ALONE = """
select not exists (
  select from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend'
    and application_name <> 'benchmark')"""


class Session:
    """A session in autocommit mode: ``with Session(dsn) as session``."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._session = psycopg.connect(dsn, autocommit=True, application_name=APPLICATION)
        #: The number of statements so far.
        self.statements = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def run(self, statement: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement; returns its rows, if any."""
        self.statements += 1
        cursor = self._session.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: LiteralString, *parameters: object) -> Any:
        """The first column of the only row."""
        return self.run(statement, *parameters)[0][0]

    def checkpoint(self) -> None:
        """Run a checkpoint, if the role has the privilege."""
        try:
            self.run("checkpoint")
        except psycopg.errors.InsufficientPrivilege:
            return

    @property
    def alone(self) -> bool:
        """Whether only sessions of the benchmark are open in this database."""
        return bool(self.value(_ALONE))

    def wal_bytes(self) -> int:
        """Bytes of WAL written since the server was initialized."""
        return int(self.value("select pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def transactions(self) -> int:
        """The number of transactions that sessions of the database have reported.

        A session reports them when it ends, and about once a second.
        """
        if self._session.info.server_version >= 15_00_00:
            self.value("select pg_stat_force_next_flush()")
        return int(self.value(_TRANSACTIONS))

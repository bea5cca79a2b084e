"""The session from which the benchmark looks after the server, and keeps count of what it asks."""

from __future__ import annotations

from types import TracebackType
from typing import Any, LiteralString, Self

import psutil
import psycopg

from benchmarks.measurement import BenchmarkFailed
from chancy.postgres import schema as tables

#: Everything that a run makes is in this schema. The statements of the package name it.
SCHEMA = "chancy_bench"

_ASLEEP = """
select not exists (
  select from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend'
    and application_name like 'chancy%' and pid <> pg_backend_pid())"""
_TRANSACTIONS = """
select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"""


class Control:
    """One session, which owns the schema while it lives: ``with Control(dsn) as control``.

    :raises BenchmarkFailed: another run is using the database.
    """

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._session = psycopg.connect(dsn, autocommit=True, application_name="benchmark")
        #: Statements asked from here.
        self.asked = 0

    def __enter__(self) -> Self:
        try:
            if not self.value("select pg_try_advisory_lock(hashtext('chancy_bench'))"):
                raise BenchmarkFailed("another run of the benchmarks is using this database")
            self.run("drop schema if exists chancy_bench cascade")
            self.run("create schema chancy_bench")
            tables.upgrade(self._dsn, SCHEMA)
            self.run("set search_path = chancy_bench")
        except BaseException:
            self._session.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A session of its own: ours may have been interrupted in the middle of a statement.
        self._session.close()
        with psycopg.connect(self._dsn, autocommit=True) as session:
            session.execute("drop schema if exists chancy_bench cascade")

    def run(self, statement: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        """Run one statement; its rows, if it has any."""
        self.asked += 1
        cursor = self._session.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: LiteralString, *parameters: object) -> Any:
        """The first column of the only row."""
        return self.run(statement, *parameters)[0][0]

    def clear(self) -> None:
        """Empty all tables, and let the next measurement begin behind a checkpoint."""
        self.run("truncate jobs, finished_jobs, workers, queues")
        try:
            self.run("checkpoint")
        except psycopg.errors.InsufficientPrivilege:
            return

    @property
    def empty(self) -> bool:
        """Whether no job is unfinished."""
        return not self.value("select exists (select from jobs)")

    @property
    def alone(self) -> bool:
        """Whether no session of chancy is left on the server."""
        return bool(self.value(_ASLEEP))

    def server_pid(self) -> int | None:
        """The postmaster's process, if it runs on this machine and we may know it."""
        try:
            pid = int(self.value("select pg_read_file('postmaster.pid')").split()[0])
            process = psutil.Process(pid)
            started_at = self.value("select pg_postmaster_start_time()").timestamp()
        except (psycopg.errors.InsufficientPrivilege, psutil.NoSuchProcess):
            return None
        # On another machine the number may be that of any process here.
        here = "postgres" in process.name() and abs(process.create_time() - started_at) < 5
        return pid if here else None

    def wal_bytes(self) -> int:
        """Bytes of log written since the server was made."""
        return int(self.value("select pg_current_wal_lsn() - '0/0'::pg_lsn"))

    def transactions(self) -> int:
        """Transactions of the database, as far as their sessions have reported them.

        A session does so when it ends, and about once a second.
        """
        if self._session.info.server_version >= 15_00_00:
            self.value("select pg_stat_force_next_flush()")
        return int(self.value(_TRANSACTIONS))

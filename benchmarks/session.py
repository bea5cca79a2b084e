"""The database sessions of the benchmark itself."""

from __future__ import annotations

from typing import Any, LiteralString, Self

import psutil
import psycopg

from benchmarks.measurement import BenchmarkFailed
from chancy import Chancy
from chancy.plugins.metrics import Metrics

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


#: The schema of all chancy tables of a run. The SQL statements of the package name it.
SCHEMA = "chancy_bench"

_CLOSED = """
select not exists (
  select from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend'
    and application_name like 'chancy%' and pid <> pg_backend_pid())"""


class Control(Session):
    """A session that creates the schema, and drops it at its end: ``with Control(dsn) as control``.

    :raises BenchmarkFailed: another run is using the database.
    """

    def __enter__(self) -> Self:
        try:
            if not self.value("select pg_try_advisory_lock(hashtext('chancy_bench'))"):
                raise BenchmarkFailed("another run of the benchmarks is using this database")
            self.run("drop schema if exists chancy_bench cascade")
            self.run("create schema chancy_bench")
            # Its table is for workers that count; others have nothing to do with it.
            Chancy(self._dsn, schema=SCHEMA, plugins=[Metrics()]).sync_migrate()
            self.run("set search_path = chancy_bench")
        except BaseException:
            self._session.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # A new session: ours may have been interrupted during a statement.
        self._session.close()
        with psycopg.connect(self._dsn, autocommit=True) as session:
            session.execute("drop schema if exists chancy_bench cascade")

    def clear(self) -> None:
        """Empty all tables, and run a checkpoint before the next measurement."""
        self.run("truncate jobs, finished_jobs, workers, queues")
        self.checkpoint()

    @property
    def empty(self) -> bool:
        """Whether all jobs are finished."""
        return not self.value("select exists (select from jobs)")

    @property
    def alone(self) -> bool:
        """Whether all sessions of chancy are closed; other programs may use the server too."""
        return bool(self.value(_CLOSED))

    def server_pid(self) -> int | None:
        """The process id of the postmaster, if it runs on this machine and the role may read it."""
        try:
            pid = int(self.value("select pg_read_file('postmaster.pid')").split()[0])
            process = psutil.Process(pid)
            started_at = self.value("select pg_postmaster_start_time()").timestamp()
        except (psycopg.errors.InsufficientPrivilege, psutil.NoSuchProcess):
            return None
        # A postmaster on another machine may have the id of an unrelated process here.
        local = "postgres" in process.name() and abs(process.create_time() - started_at) < 5
        return pid if local else None

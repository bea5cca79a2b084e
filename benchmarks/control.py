"""The session that controls the server and owns the schema in which chancy is measured."""

from __future__ import annotations

from typing import Self

import psutil
import psycopg

from benchmarks.measurement import BenchmarkFailed
from benchmarks.session import Session
from chancy import Chancy
from chancy.plugins.metrics import Metrics

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

"""The session that looks after the server, and owns the schema in which chancy is measured."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import psutil
import psycopg

from benchmarks.measurement import BenchmarkFailed
from benchmarks.session import Session
from chancy import Chancy

#: Everything that a run makes of chancy's is in this schema. The statements of the package name it.
SCHEMA = "chancy_bench"

_ASLEEP = """
select not exists (
  select from pg_stat_activity
  where datname = current_database() and backend_type = 'client backend'
    and application_name like 'chancy%' and pid <> pg_backend_pid())"""


class Control(Session):
    """One session, which owns the schema while it lives: ``with Control(dsn) as control``.

    :raises BenchmarkFailed: another run is using the database.
    """

    def __enter__(self) -> Self:
        try:
            if not self.value("select pg_try_advisory_lock(hashtext('chancy_bench'))"):
                raise BenchmarkFailed("another run of the benchmarks is using this database")
            self.run("drop schema if exists chancy_bench cascade")
            self.run("create schema chancy_bench")
            Chancy(self._dsn, schema=SCHEMA).sync_migrate()
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

    def clear(self) -> None:
        """Empty all tables, and let the next measurement begin behind a checkpoint."""
        self.run("truncate jobs, finished_jobs, workers, queues")
        self.checkpoint()

    @property
    def empty(self) -> bool:
        """Whether no job is unfinished."""
        return not self.value("select exists (select from jobs)")

    @property
    def alone(self) -> bool:
        """Whether no session of chancy is left on the server; a given one may have others."""
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

"""The Postgres broker for code without an event loop: the same statements, blocking sessions."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
import psycopg_pool

from chancy.broker.values import PreparedJob
from chancy.clock import Backoff
from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.job.definition import QueuedJob
from chancy.postgres import rows
from chancy.postgres.catalog import declaration
from chancy.postgres.drivers import sqlstates
from chancy.postgres.dsn import parse
from chancy.postgres.push import missing_tables
from chancy.postgres.push.bulk import gathered
from chancy.postgres.push.statement import (
    PATIENCE_S,
    already_stored,
    insertion,
    stand_ins,
    without,
)
from chancy.postgres.statements import Statements
from chancy.postgres.within import fetch_within_sync
from chancy.queue.queue import Queue


class SyncPostgresBroker:
    """The calls of `PostgresBroker` behind the ``sync_…`` methods. Safe to share by threads."""

    def __init__(self, dsn: str, *, schema: str = "chancy", pool_size: int = 10) -> None:
        self.sql = Statements(schema)
        self._dsn = parse(dsn)
        self._pool_size = pool_size
        self._pid, self._pool_of_pid = os.getpid(), self._new_pool()
        # Pools of the process that this one was forked from. Their sessions belong to the parent
        # and must not be closed here.
        self._inherited: list[psycopg_pool.ConnectionPool[Any]] = []
        self._forked = threading.Lock()

    def _new_pool(self) -> psycopg_pool.ConnectionPool[Any]:
        return psycopg_pool.ConnectionPool(
            self._dsn.conninfo(application_name="chancy"),
            min_size=0,
            max_size=self._pool_size,
            timeout=10.0,
            open=False,
            kwargs={"autocommit": True, "prepare_threshold": None},
        )

    @property
    def _pool(self) -> psycopg_pool.ConnectionPool[Any]:
        if self._pid != os.getpid():
            with self._forked:
                if self._pid != os.getpid():
                    self._inherited.append(self._pool_of_pid)
                    pool = self._new_pool()
                    if not self._pool_of_pid.closed:
                        pool.open()
                    self._pool_of_pid, self._pid = pool, os.getpid()
        return self._pool_of_pid

    def open(self) -> None:
        """Open the pool. Raises `BrokerUnavailable` if the server cannot be reached."""
        self._pool.open()
        try:
            self.fetch("select 1")
        except BaseException:
            self._pool.close()
            raise

    def close(self) -> None:
        self._pool.close()

    def fetch(self, sql: str, *params: object) -> list[Any]:
        """Run one statement on a session of the pool."""
        with self._errors(), self._pool.connection() as connection:
            cursor = psycopg.RawCursor(connection)
            cursor.execute(sql.encode(), params)
            return list(cursor.fetchall()) if cursor.description else []

    def push(
        self, jobs: Sequence[PreparedJob], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `Broker.push`."""
        if not jobs:
            return {}
        try:
            if within is None:
                return self._persist(jobs)
            statement, parameters = insertion(self.sql, jobs, new=False, guarded=False)
            rows = fetch_within_sync(within, statement, *parameters)
        except Exception as error:
            missing_tables.check_sync(error, self.fetch, self.sql.schema)
            raise
        return stand_ins(self.sql, statement, rows)

    def push_many(
        self, chunks: Iterable[Sequence[PreparedJob]], *, within: object | None = None
    ) -> Mapping[UUID, UUID]:
        """See `Broker.push_many`."""
        if within is None:
            with self.transaction() as own:
                return self.push_many(chunks, within=own)
        found: dict[UUID, UUID] = {}
        for chunk in gathered(chunks):
            found |= self.push(chunk, within=within)
        return found

    def _persist(self, jobs: Sequence[PreparedJob]) -> Mapping[UUID, UUID]:
        backoff, give_up_at = Backoff(), time.monotonic() + PATIENCE_S
        while True:
            try:
                if backoff.failures:
                    stored = self.fetch(self.sql.pushed_before, [job.id for job in jobs])
                    jobs = without(jobs, (row[0] for row in stored))
                    return self._store(jobs, new=False)
                return self._store(jobs, new=True)
            except (BrokerUnavailable, StatementFailed) as error:
                pause = backoff.next_s()
                if not error.retryable or time.monotonic() + pause > give_up_at:
                    raise
                time.sleep(pause)

    def _store(self, jobs: Sequence[PreparedJob], *, new: bool) -> Mapping[UUID, UUID]:
        if not jobs:
            return {}
        statement, parameters = insertion(self.sql, jobs, new=new)
        try:
            return stand_ins(self.sql, statement, self.fetch(statement, *parameters))
        except StatementFailed as error:
            if not (new and already_stored(error)):
                raise
            return self._store(jobs, new=False)

    @contextmanager
    def transaction(self) -> Generator[psycopg.Connection[Any]]:
        """Open a transaction on a session of the pool; pass what it yields as ``within``."""
        with self._errors(), self._pool.connection() as connection, connection.transaction():
            yield connection

    def queues(self) -> list[Queue]:
        return [rows.queue(row)[0] for row in self.fetch(self.sql.queues, None)]

    def get(self, id: UUID) -> QueuedJob | None:
        found = self.fetch(self.sql.get, [id])
        return rows.queued_job(found[0]) if found else None

    def declare(self, queue: Queue, *, upsert: bool = False) -> Queue:
        self.fetch(self.sql.declare, *declaration(queue), upsert)
        (row,) = self.fetch(self.sql.queues, queue.name)
        return rows.queue(row)[0]

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (psycopg_pool.PoolTimeout, psycopg.InterfaceError) as error:
            raise BrokerUnavailable(
                f"{self._dsn.place} cannot be reached: {sqlstates.one_line(error)}"
            ) from error
        except psycopg.Error as error:
            text = sqlstates.one_line(error.diag.message_primary or error)
            if error.sqlstate is None or sqlstates.lost(error.sqlstate):
                raise BrokerUnavailable(f"{self._dsn.place}: {text}") from error
            raise StatementFailed(
                sqlstates.advised(error.sqlstate, text),
                sqlstate=error.sqlstate,
                passing=sqlstates.partition_changed(error.sqlstate, error),
            ) from error

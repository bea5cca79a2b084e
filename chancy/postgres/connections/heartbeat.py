"""Heartbeats over a blocking connection, independent of the event loop and the pool."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING
from uuid import UUID

from chancy.errors import LOCK_NOT_AVAILABLE, BrokerUnavailable, StatementFailed
from chancy.postgres.drivers import sqlstates, timelines
from chancy.postgres.dsn import parse
from chancy.postgres.statements import Statements

if TYPE_CHECKING:
    import psycopg


#: Tries of a statement that fails because its row changes at the same time, on a server with a
#: stricter isolation level than read committed. An explicit transaction would set the level, and
#: keep the row locked while the process is frozen.
_TRIES = 5


def own_memory() -> int | None:
    """The resident memory of this process in bytes; None if it cannot be read."""
    from chancy.executors.process.memory import resident  # workers alone need it

    return resident(os.getpid())


class Register:
    """Records heartbeats and removes dead workers, on its own blocking connection.

    Not thread-safe.
    """

    def __init__(self, dsn: str, statements: Statements) -> None:
        self._dsn = dsn
        self._sql = statements
        self._connection: psycopg.Connection[tuple[int]] | None = None

    def beat(self, worker_id: UUID, blocked_s: float, memory: int | None = None) -> bool:
        """Record a heartbeat of a worker; returns False if it is not registered.

        :param blocked_s: seconds for which its event loop has been blocked.
        :param memory: its resident memory in bytes; None leaves what is stored.
        :raises BrokerUnavailable: the server cannot be reached.
        :raises StatementFailed: another transaction locks the row, or the server is slow.
        """
        found = self._run(self._sql.beat, worker_id, blocked_s, time.time(), memory)
        return found.fetchone() is not None

    def forget(self, worker_id: UUID) -> bool:
        """Remove a dead worker, so that its jobs are rescued.

        Returns False if it is not registered.

        :raises BrokerUnavailable: the server cannot be reached.
        :raises StatementFailed: another transaction locks the row, or the server is slow.
        """
        return self._run(self._sql.unregister, worker_id).rowcount > 0

    def _run(
        self, statement: str, *args: UUID | float | None, tries: int = _TRIES
    ) -> psycopg.RawCursor[tuple[int]]:
        import psycopg  # would take 40 % of the time of `import chancy`

        try:
            if self._connection is None:
                self._connection = self._connect()
            cursor = psycopg.RawCursor(self._connection)
            return cursor.execute(statement.encode(), args)
        except psycopg.Error as error:
            if tries > 1 and isinstance(error, psycopg.errors.SerializationFailure):
                return self._run(statement, *args, tries=tries - 1)
            why = sqlstates.one_line(error)
            if error.sqlstate in (LOCK_NOT_AVAILABLE, sqlstates.QUERY_CANCELED):
                locked = "a transaction has locked the row of the worker, or the server is slow"
                raise StatementFailed(f"{locked}: {why}", sqlstate=error.sqlstate) from error
            failed = BrokerUnavailable(f"the heartbeat failed: {why}")
            if self._connection is not None:
                failed.refused = sqlstates.statement_refused(error.sqlstate)
            # Of several hosts, another one may be the server that is down. One host may be tried
            # at each of its addresses, with TLS and without.
            elif len(parse(self._dsn).hosts) < 2:
                from chancy.postgres.drivers.psycopg import refusal

                refusals = [f"FATAL: {part}" for part in why.split("FATAL:")[1:]] or [why]
                failed.refused = all(
                    sqlstates.serves_others(refusal(error.sqlstate, text)[0]) for text in refusals
                )
            self.close()
            raise failed from error

    def _connect(self) -> psycopg.Connection[tuple[int]]:
        """See `chancy.postgres.drivers.timelines.connect`. Reads the timeline only if a session of
        the worker, which connects first, was able to."""
        import psycopg

        dsn = parse(self._dsn)
        for candidate in timelines.candidates(dsn):
            try:
                connection = psycopg.Connection.connect(
                    candidate.conninfo(application_name="chancy heartbeat"),
                    autocommit=True,
                    prepare_threshold=None,
                )
            except psycopg.OperationalError:
                if candidate is dsn:
                    raise
                continue
            if not timelines.known(dsn):
                return connection
            try:
                row = connection.execute(timelines.QUERY.encode()).fetchone()
            except BaseException:
                connection.close()
                raise
            if row is None or timelines.accepts(dsn, row):
                return connection
            connection.close()
        raise timelines.old_primary(dsn)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class PostgresHeartbeat:
    """Sends the heartbeats of one worker, from a separate thread."""

    def __init__(self, dsn: str, statements: Statements, worker_id: UUID) -> None:
        self._register = Register(dsn, statements)
        self._worker_id = worker_id

    def beat(self, blocked_s: float = 0.0) -> bool:
        """See `Heartbeat.beat`. Raises `BrokerUnavailable` if the server cannot be reached."""
        return self._register.beat(self._worker_id, blocked_s, own_memory())

    def close(self) -> None:
        self._register.close()

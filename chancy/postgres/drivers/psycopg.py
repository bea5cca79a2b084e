"""Sessions over psycopg 3."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Sequence
from typing import Any

import psycopg
import psycopg.sql
from psycopg import AsyncConnection, AsyncRawCursor, pq, waiting
from psycopg.abc import RV, PQGen

from chancy.errors import BrokerUnavailable, StatementFailed
from chancy.postgres import dsn as dsns
from chancy.postgres.drivers import base, sqlstates, timelines
from chancy.postgres.drivers.adaptation import ADAPTERS
from chancy.postgres.drivers.session import Session, connect_failure

# A statement is prepared when it is run for the second time.
_PREPARE_THRESHOLD = 1
_PREPARED_STATEMENTS = 256

# libpq reports no SQLSTATE for a connection that the server refused, only the server's message.
_REFUSALS = (
    ("password authentication failed", "28P01"),
    ("no pg_hba.conf entry", "28000"),
    ("no password supplied", "28P01"),
    ('role "', "28000"),
    ('database "', "3D000"),
    ("sorry, too many clients", sqlstates.TOO_MANY_CONNECTIONS),
    ("remaining connection slots are reserved", sqlstates.TOO_MANY_CONNECTIONS),
    ("too many connections for", sqlstates.TOO_MANY_CONNECTIONS),
)

# The function of the server that refuses a wrong number of parameters, with a code that otherwise
# means that the connection is lost.
_BIND, _PROTOCOL_VIOLATION = "exec_bind_message", "08P01"


def _trusted(sql: Any) -> Any:
    """Pass a statement as trusted: psycopg's types require a literal, ours come from files."""
    return sql


class _Connection(AsyncConnection[tuple[Any, ...]]):
    """A connection that sends no cancel request when a task is cancelled.

    psycopg would wait up to ten seconds for a server that may be gone.
    """

    async def wait(
        self, gen: PQGen[RV], interval: float = 60.0, timeout: float | None = None
    ) -> RV:
        return await waiting.wait_async(gen, self.pgconn.socket, interval=60.0)


class PsycopgSession(Session):
    """One session over psycopg, with prepared statements unless it goes through a pooler."""

    def __init__(self, connection: _Connection, place: str) -> None:
        super().__init__(place)
        self._connection = connection
        self._pgconn = connection.pgconn
        self._fd = self._pgconn.socket
        self._cursor = AsyncRawCursor(connection)
        self._reading = False
        self.server_pid = self._pgconn.backend_pid
        # Replaces psycopg's own handler, which keeps payloads without a limit.
        self._pgconn.notify_handler = self._notified
        connection.add_notice_handler(lambda notice: self._noticed(notice.source_function))

    async def _fetch(self, sql: str, params: tuple[object, ...]) -> Sequence[base.Row]:
        cursor = self._cursor
        await cursor.execute(_trusted(sql), params, binary=True)
        if cursor.pgresult is None or cursor.pgresult.status != pq.ExecStatus.TUPLES_OK:
            return ()
        return await cursor.fetchall()

    async def _fetch_once(self, sql: str) -> Sequence[base.Row]:
        await self._cursor.execute(_trusted(sql), prepare=False, binary=True)
        return await self._cursor.fetchall()

    async def _execute(self, sql: str) -> str:
        await self._cursor.execute(_trusted(sql), prepare=False)
        return self._cursor.statusmessage or ""

    async def _listen(self, channel: str) -> None:
        name = psycopg.sql.Identifier(channel).as_string(self._connection)
        await self._execute(f"listen {name}")

    def _notified(self, notification: pq.PGnotify) -> None:
        self._inbox.put(notification.extra.decode(errors="replace"))

    def _receive(self) -> None:
        self._reading = True
        asyncio.get_running_loop().add_reader(self._pgconn.socket, self._drain)
        # TLS may have read ahead, and notifications that arrived during a statement have already
        # been read from the socket.
        self._drain()

    def _rest(self) -> None:
        if self._reading:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self._fd)

    def _drain(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.Error:
            # Immediately: the descriptor of the closed socket may be reused.
            self._rest()
            self._inbox.wake()
            return
        while notification := self._pgconn.notifies():
            self._notified(notification)

    def check_idle(self) -> None:
        try:
            # The first call may find the server's last message, and the next one the end behind it.
            # Anything else, such as a notice, stays for the next statement.
            self._pgconn.consume_input()
            self._pgconn.consume_input()
        except psycopg.Error:
            self.abort()

    async def _discard_statements(self) -> None:
        # In a failed transaction this is neither possible nor needed: the driver discards its
        # statements when it sees the ROLLBACK.
        if self._pgconn.transaction_status == pq.TransactionStatus.IDLE:
            await self._execute("deallocate all")

    def _explain(self, error: Exception) -> tuple[str | None, str] | None:
        return _explain(error)

    @property
    def _gone(self) -> bool:
        return self._pgconn.status == pq.ConnStatus.BAD

    def _cut_socket(self) -> None:
        if not self._gone:
            # Shut the socket down instead of closing it: the pending call still waits for this
            # descriptor, and the end of the stream wakes it.
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._fd)) as twin:
                twin.shutdown(socket.SHUT_RDWR)

    def _release(self) -> None:
        self._pgconn.finish()

    async def close(self) -> None:
        if not self._busy:
            self._release()  # terminates the session cleanly
        self.abort()

    def prepare_statements(self) -> None:
        """Prepare repeated statements on the server. Not for a session behind a pooler."""
        self._connection.prepare_threshold = _PREPARE_THRESHOLD
        self._connection.prepared_max = _PREPARED_STATEMENTS


class PsycopgDriver:
    """Opens sessions over psycopg 3."""

    name = "psycopg"

    async def connect(self, dsn: str, *, application_name: str) -> base.Connection:
        open_session = functools.partial(_greeted, application_name=application_name)
        return await timelines.connect(dsns.parse(dsn), open_session)


async def _greeted(dsn: dsns.Dsn, *, application_name: str) -> PsycopgSession:
    session = await _open(dsn, application_name)
    await session.greet(dsn.connect_timeout_s)
    if not session.pooled:
        session.prepare_statements()
    return session


async def _open(dsn: dsns.Dsn, application_name: str) -> PsycopgSession:
    # Each address of each host has the connect timeout. The overall limit is for name resolution,
    # which has none.
    limit_s = dsn.connect_timeout_s and 2 * dsn.connect_timeout_s * max(1, len(dsn.hosts))
    try:
        async with asyncio.timeout(limit_s):
            connection = await _Connection.connect(
                dsn.conninfo(application_name=application_name),
                autocommit=True,
                prepare_threshold=None,
                context=ADAPTERS,
            )
    except Exception as error:
        refused = refused_session(dsn.place, error)
        if refused is None:
            raise
        raise refused from error
    return PsycopgSession(connection, dsn.place)


def refused_session(place: str, error: Exception) -> Exception | None:
    """The exception to raise for a session that psycopg could not open; None if ``error`` has
    another reason."""
    known = _explain(error)
    return None if known is None else connect_failure(place, *refusal(*known))


def failed_statement(place: str, error: Exception) -> Exception:
    """The exception to raise for an error of psycopg on an open session."""
    sqlstate, text = _explain(error) or (None, str(error))
    if sqlstate is None or sqlstates.lost(sqlstate):
        return BrokerUnavailable(f"{place}: the connection was lost: {sqlstates.one_line(text)}")
    return StatementFailed(sqlstates.advised(sqlstate, text), sqlstate=sqlstate)


def refusal(sqlstate: str | None, text: str) -> tuple[str | None, str]:
    """The SQLSTATE of a refused connection, from the server's message, and the message."""
    if sqlstate is None and "FATAL:" in text:
        message = text.rpartition("FATAL:")[2].strip()
        for start, code in _REFUSALS:
            if message.startswith(start):
                return code, text
    return sqlstate, text


def _explain(error: Exception) -> tuple[str | None, str] | None:
    if isinstance(error, UnicodeEncodeError):
        return sqlstates.unencodable(error)
    if isinstance(error, psycopg.Error):
        if error.diag.source_function == _BIND and error.sqlstate == _PROTOCOL_VIOLATION:
            return sqlstates.DATA_EXCEPTION, error.diag.message_primary or str(error)
        if error.sqlstate is not None:
            return error.sqlstate, error.diag.message_primary or str(error)
        text = " ".join(str(error).split())
        lost = isinstance(error, psycopg.OperationalError)
        return None if lost else sqlstates.DATA_EXCEPTION, text
    if isinstance(error, (OSError, TimeoutError)):
        return None, str(error) or "timed out"
    if isinstance(error, (ValueError, TypeError, OverflowError)):
        return sqlstates.DATA_EXCEPTION, str(error)
    return None

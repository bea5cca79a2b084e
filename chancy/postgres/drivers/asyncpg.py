"""Sessions over asyncpg."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import asyncpg
from asyncpg.exceptions import (
    InterfaceError,
    InternalClientError,
    PostgresError,
)

from chancy.errors import BrokerUnavailable
from chancy.postgres import dsn as dsns
from chancy.postgres.drivers import base, sqlstates, timelines
from chancy.postgres.drivers.session import Session, connect_failure

# More than the number of statements of chancy and its plugins.
_CACHED_STATEMENTS = 256

# Seconds to wait for the server to close a connection.
_GOODBYE_S = 1.0

# The parameters that asyncpg reads from the query of a URI instead of an argument. It would send
# all other parameters of libpq (timeouts, keepalives, channel_binding …) to the server as settings.
_URI_PARAMETERS = (
    "gsslib",
    "krbsrvname",
    "service",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
    "target_session_attrs",
)
_SERVER_SETTINGS = ("application_name", "options")


class _Connection(asyncpg.Connection):
    """An asyncpg connection with TCP keepalives: the kernel's default is two hours."""

    __slots__ = ("notified",)

    def __init__(self, protocol: Any, transport: Any, *rest: Any, **named: Any) -> None:
        super().__init__(protocol, transport, *rest, **named)
        #: Called with the payloads of all channels.
        self.notified: Callable[[str], None] | None = None
        _keep_alive(transport.get_extra_info("socket"))

    def _process_notification(self, pid: int, channel: str, payload: str) -> None:
        # asyncpg calls its listeners one loop iteration later: 0.03 ms in an idle process. With a
        # version that does not call this method, the registered listener gets the payload.
        if self.notified is not None:
            self.notified(payload)


class AsyncpgSession(Session):
    """One session over asyncpg, with a cache of prepared statements."""

    def __init__(self, connection: _Connection, place: str) -> None:
        super().__init__(place)
        self._connection = connection
        connection.notified = self._inbox.put
        self.server_pid = connection.get_server_pid()
        connection.add_termination_listener(lambda _: self._inbox.wake())
        connection.add_log_listener(lambda _, notice: self._noticed(notice.server_source_function))

    async def _fetch(self, sql: str, params: tuple[object, ...]) -> Sequence[base.Row]:
        records: Any = await self._connection.fetch(sql, *params)
        return records  # type: ignore[no-any-return]  # a Record is a Sequence in all but name

    async def _fetch_once(self, sql: str) -> Sequence[base.Row]:
        statement = await self._connection.prepare(sql, name="")
        records: Any = await statement.fetch()
        return records  # type: ignore[no-any-return]

    async def _execute(self, sql: str) -> str:
        return str(await self._connection.execute(sql))

    async def _listen(self, channel: str) -> None:
        await self._connection.add_listener(channel, self._notified)

    def _notified(self, connection: object, pid: int, channel: str, payload: object) -> None:
        self._inbox.put(str(payload))

    async def _discard_statements(self) -> None:
        # Sends nothing to the server, so it also works in a failed transaction.
        await self._connection.reload_schema_state()

    def _explain(self, error: Exception) -> tuple[str | None, str] | None:
        return _explain(error, broken=self._gone)

    @property
    def _gone(self) -> bool:
        return self._connection.is_closed()

    def _cut_socket(self) -> None:
        self._connection.terminate()

    def _release(self) -> None:
        self._connection.terminate()

    async def close(self) -> None:
        if not self.closed and not self._busy:
            with suppress(OSError, TimeoutError, PostgresError, InterfaceError):
                await self._connection.close(timeout=_GOODBYE_S)
        self.abort()


class AsyncpgDriver:
    """Opens sessions over asyncpg, or over psycopg behind a pooler or with ``hostaddr``.

    asyncpg parses a statement in one message and runs it in another. Behind a pooler the two may
    reach different server sessions unless a transaction holds one (measured: a third of psycopg's
    calls a second) or the statement has no name and there is no sync in between (0.6 of them).
    psycopg sends everything in one message.
    """

    name = "asyncpg"

    async def connect(self, dsn: str, *, application_name: str) -> base.Connection:
        parsed = dsns.parse(dsn)
        # Of a host with an address asyncpg knows one only: the address to connect to, or the name
        # that the certificate has.
        if not {"host", "hostaddr"} <= parsed.parameters.keys():
            open_session = functools.partial(_greeted, application_name=application_name)
            session = await timelines.connect(parsed, open_session)
            if not session.pooled:
                return session
            await session.close()
        from chancy.postgres.drivers.psycopg import PsycopgDriver

        return await PsycopgDriver().connect(dsn, application_name=application_name)


async def _greeted(dsn: dsns.Dsn, *, application_name: str) -> AsyncpgSession:
    session = await _open(dsn, application_name)
    await session.greet(dsn.connect_timeout_s)
    return session


async def _open(dsn: dsns.Dsn, application_name: str) -> AsyncpgSession:
    """Try the hosts in turn, each with the full connect timeout.

    asyncpg applies one timeout to all hosts, so an unresponsive first host would hide the others.
    """
    failures: list[BrokerUnavailable] = []
    for host in dsn.hosts or (None,):
        try:
            connection = await asyncpg.connect(
                connection_class=_Connection,
                statement_cache_size=_CACHED_STATEMENTS,
                max_cached_statement_lifetime=0,
                max_cacheable_statement_size=0,
                **arguments(dsn, host, application_name),
            )
        except Exception as error:
            known = _explain(error, broken=True)
            if known is None:
                raise
            if isinstance(error, OSError) and (unreadable := _unreadable_file(dsn)):
                known = None, f"{unreadable}: {error.strerror}"
            failure = connect_failure(dsn.place, *known)
            if not isinstance(failure, BrokerUnavailable):
                raise failure from error
            failure.__cause__ = error
            failures.append(failure)
        else:
            return AsyncpgSession(connection, dsn.place)
    if len(failures) == 1:
        raise failures[0]
    text = "; ".join(
        f"{host}: {failure}" for host, failure in zip(dsn.hosts, failures, strict=True)
    )
    raise BrokerUnavailable(text) from failures[-1]


def _unreadable_file(dsn: dsns.Dsn) -> str | None:
    """The first file of the DSN that cannot be read: asyncpg's error does not name it."""
    for name in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        path = dsn.parameters.get(name)
        if path and path != "system" and not os.access(path, os.R_OK):
            return f'{name} "{path}"'
    return None


def arguments(dsn: dsns.Dsn, host: dsns.DsnHost | None, application_name: str) -> dict[str, Any]:
    """The arguments of `asyncpg.connect` for the parameters of a DSN."""
    parameters = dsn.parameters
    arguments: dict[str, Any] = {
        name: parameters[key]
        for name, key in (
            ("user", "user"),
            ("password", "password"),
            ("database", "dbname"),
            ("passfile", "passfile"),
        )
        if key in parameters
    }
    query = {name: parameters[name] for name in _URI_PARAMETERS if name in parameters}
    if query.get("sslrootcert") == "system":
        # For libpq, the certificates of the system; for asyncpg, a file of this name.
        del query["sslrootcert"]
        query.pop("sslmode", None)
        arguments["ssl"] = True
    if query:
        arguments["dsn"] = f"postgresql://?{urlencode(query)}"
    if host is not None:
        arguments["host"] = host.name or None
        arguments["port"] = host.port
    settings = {"application_name": application_name}
    settings.update({name: parameters[name] for name in _SERVER_SETTINGS if name in parameters})
    arguments["server_settings"] = settings
    arguments["timeout"] = dsn.connect_timeout_s
    return arguments


def _explain(error: Exception, *, broken: bool) -> tuple[str | None, str] | None:
    if isinstance(error.__cause__, UnicodeEncodeError):
        return sqlstates.unencodable(error.__cause__)
    if isinstance(error, PostgresError):
        return error.sqlstate, str(error.args[0])
    if isinstance(error, (OSError, TimeoutError)):
        return None, str(error) or "timed out"
    if isinstance(error, InternalClientError) or (broken and type(error) is InterfaceError):
        return None, str(error.args[0])
    if isinstance(error, (InterfaceError, ValueError, TypeError, OverflowError)):
        return sqlstates.DATA_EXCEPTION, str(error.args[0] if error.args else error)
    return None


def _keep_alive(connected: Any) -> None:
    if connected is None or connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", dsns.KEEPALIVES_IDLE_S),
        ("TCP_KEEPINTVL", dsns.KEEPALIVES_INTERVAL_S),
        ("TCP_KEEPCNT", dsns.KEEPALIVES_COUNT),
        ("TCP_USER_TIMEOUT", dsns.TCP_USER_TIMEOUT_MS),
    ):
        # Not every system has all of these options.
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

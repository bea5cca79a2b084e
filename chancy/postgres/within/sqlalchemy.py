"""SQLAlchemy 2: sessions and connections, sync and async, over asyncpg and psycopg 3.

Statements are sent on the driver's connection, in SQLAlchemy's transaction: through SQLAlchemy
they take 1.5 times as long. psycopg starts a transaction implicitly. With asyncpg, SQLAlchemy sends
BEGIN with its own first statement, so if ours is the first, it goes through SQLAlchemy: sent
directly, it would be committed immediately.

An async session returns its connection in a greenlet, which costs 30 µs. So the connection is
looked up once for each transaction and savepoint, and cached while that is open.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import exc
from sqlalchemy.engine import Connection
from sqlalchemy.util import await_only

from chancy.postgres.within.calls import Fetch, FetchSync, block

Rows = Sequence[Any]

#: The SQLAlchemy error for an error of either driver, by the name of its class.
_ERRORS = {
    "DataError": exc.DataError,
    "IntegrityConstraintViolationError": exc.IntegrityError,
    "IntegrityError": exc.IntegrityError,
    "InterfaceError": exc.InterfaceError,
    "InternalError": exc.InternalError,
    "InternalServerError": exc.InternalError,
    "NotSupportedError": exc.NotSupportedError,
    "OperationalError": exc.OperationalError,
    "PostgresError": exc.DBAPIError,
    "ProgrammingError": exc.ProgrammingError,
    "SyntaxOrAccessError": exc.ProgrammingError,
}


#: The connection of a session, by its transaction or savepoint.
_joined: WeakKeyDictionary[object, Connection] = WeakKeyDictionary()


def bind(within: Any) -> Fetch | None:
    if (asynchronous := sys.modules.get("sqlalchemy.ext.asyncio")) is not None:
        if isinstance(within, asynchronous.async_scoped_session):
            within = within.registry()  # now, as the registry may depend on the current task
        if isinstance(within, asynchronous.AsyncSession | asynchronous.AsyncConnection):
            return partial(_fetch, within)
    blocking = bind_sync(within)
    return None if blocking is None else partial(block, blocking)


def bind_sync(within: Any) -> FetchSync | None:
    if (orm := sys.modules.get("sqlalchemy.orm")) is not None:
        if isinstance(within, orm.scoped_session):
            within = within.registry()
        if isinstance(within, orm.Session):
            return partial(_run, within)
    if isinstance(within, Connection):
        return partial(_run, within)
    if (asynchronous := sys.modules.get("sqlalchemy.ext.asyncio")) is not None and isinstance(
        within,
        asynchronous.AsyncSession
        | asynchronous.AsyncConnection
        | asynchronous.async_scoped_session,
    ):
        raise TypeError(
            f"within= is an SQLAlchemy {type(within).__name__}: use `await chancy.push(…)`, "
            "or pass the Session that its run_sync passes to the function"
        )
    return None


async def _fetch(within: Any, sql: str, *params: object) -> list[Any]:
    result = _send_directly(within, sql, params)
    if result is None:
        result = await within.run_sync(_send_in_transaction, sql, params)
    try:
        return list(await result if isinstance(result, Awaitable) else result)
    except Exception as error:
        if (wrapped := _wrapped(error, sql)) is None:
            raise
        raise wrapped from error


def _run(within: Any, sql: str, *params: object) -> list[Any]:
    bound = within if isinstance(within, Connection) else within.get_bind()
    if bound.dialect.is_async:
        _check_greenlet(within)
    try:
        result = _send_in_transaction(within, sql, params)
        return list(await_only(result) if isinstance(result, Awaitable) else result)
    except Exception as error:
        if (wrapped := _wrapped(error, sql)) is None:
            raise
        raise wrapped from error


def _check_greenlet(within: Any) -> None:
    """Raise TypeError unless the caller runs inside `run_sync` of an AsyncSession."""
    try:
        await_only(asyncio.sleep(0))
    except exc.MissingGreenlet as error:
        raise TypeError(
            f"within= is a sync {type(within).__name__} of an async SQLAlchemy engine: use "
            "`await chancy.push(…)` with the AsyncSession or AsyncConnection, or sync_push "
            "inside its run_sync"
        ) from error


def _send_in_transaction(
    within: Any, sql: str, params: tuple[object, ...]
) -> Rows | Awaitable[Rows]:
    """Run one statement in the current transaction, or in a new one if there is none.

    Returns an awaitable if the driver is async: awaiting it outside SQLAlchemy's greenlet is
    faster.
    """
    connection: Connection = within if isinstance(within, Connection) else within.connection()
    if not connection.in_transaction():
        connection.begin()  # else SQLAlchemy would not end the transaction that the driver starts
    if connection is not within:
        _joined[within.get_nested_transaction() or within.get_transaction()] = connection
    return _send(connection, sql, params)


def _send_directly(
    within: Any, sql: str, params: tuple[object, ...]
) -> Rows | Awaitable[Rows] | None:
    """`_send_in_transaction` without a greenlet, in a transaction that exists on the server.

    None if SQLAlchemy has to send something first or to raise an error.
    """
    connection: Connection | None
    if (session := getattr(within, "sync_session", None)) is None:
        connection = within.sync_connection
    else:
        transaction = session.get_nested_transaction() or session.get_transaction()
        connection = None if transaction is None else _joined.get(transaction)
    if connection is None or not connection.in_transaction():
        return None
    driver: Any = connection.connection.driver_connection
    started = connection.dialect.driver != "asyncpg" or driver.is_in_transaction()
    return _send(connection, sql, params) if started else None


def _send(connection: Connection, sql: str, params: tuple[object, ...]) -> Rows | Awaitable[Rows]:
    dialect = connection.dialect
    driver: Any = connection.connection.driver_connection
    match f"{dialect.name}+{dialect.driver}":
        case "postgresql+asyncpg" if driver.is_in_transaction():
            fetch: Fetch = driver.fetch
            return fetch(sql, *params)
        case "postgresql+asyncpg":
            result = connection.exec_driver_sql(sql, params)
            return result.fetchall() if result.returns_rows else []
        case "postgresql+psycopg" | "postgresql+psycopg_async":
            from chancy.postgres.within import psycopg

            if dialect.is_async:
                return psycopg.fetch_async(driver, sql, *params)
            return psycopg.fetch(driver, sql, *params)
        case other:
            raise TypeError(
                f"within= belongs to an SQLAlchemy engine for {other}: use one for "
                "postgresql+psycopg (psycopg 3) or postgresql+asyncpg"
            )


def _wrapped(error: Exception, sql: str) -> exc.DBAPIError | None:
    """The error that SQLAlchemy raises for a driver's error; None for any other error."""
    if isinstance(error, exc.SQLAlchemyError):
        return None
    names = (base.__name__ for base in type(error).__mro__)
    kind = next((_ERRORS[name] for name in names if name in _ERRORS), None)
    return None if kind is None else kind(sql, None, error)

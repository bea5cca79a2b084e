"""Statements inside a transaction of the caller's, whatever the driver it came with."""

from __future__ import annotations

import sys
from typing import Any

from chancy.postgres.drivers.session import Session

ACCEPTED = (
    "what chancy.transaction() gives, a psycopg 3 connection or cursor (sync or async), "
    "or an asyncpg connection"
)


async def fetch_within(within: Any, sql: str, *params: object) -> list[Any]:
    """Run one statement on the caller's connection; it commits or rolls back with the rest.

    Errors are those of the caller's own driver.
    :raises TypeError: it is no kind of connection that we know.
    """
    if isinstance(within, Session):
        return list(await within.fetch(sql, *params))
    if (psycopg := sys.modules.get("psycopg")) is not None:
        connection = within
        if isinstance(within, psycopg.AsyncCursor | psycopg.Cursor):
            connection = within.connection
        if isinstance(connection, psycopg.AsyncConnection):
            cursor = psycopg.AsyncRawCursor(connection)
            return list(await (await cursor.execute(sql, params)).fetchall())
        if isinstance(connection, psycopg.Connection):
            return fetch_within_sync(connection, sql, *params)
    if (asyncpg := sys.modules.get("asyncpg")) is not None and isinstance(
        within, asyncpg.Connection | asyncpg.pool.PoolConnectionProxy
    ):
        return list(await within.fetch(sql, *params))
    raise TypeError(f"within={within!r} is not a connection: pass {ACCEPTED}")


def fetch_within_sync(within: Any, sql: str, *params: object) -> list[Any]:
    """The same for code that does not run in an event loop: psycopg's sync connections only."""
    import psycopg

    connection = within.connection if isinstance(within, psycopg.Cursor) else within
    if not isinstance(connection, psycopg.Connection):
        raise TypeError(
            f"within={within!r} is not a connection: pass a sync psycopg 3 connection or cursor"
        )
    return list(psycopg.RawCursor(connection).execute(sql.encode(), params).fetchall())

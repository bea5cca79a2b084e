"""psycopg 3: connections and cursors, sync and async.

Each statement gets a new cursor: the caller's may have unread rows and another row factory.
psycopg starts the transaction with our statement if it is the first.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from chancy.postgres.within.calls import Fetch, FetchSync, block


def bind(within: Any) -> Fetch | None:
    connection = within.connection if isinstance(within, psycopg.AsyncCursor) else within
    if isinstance(connection, psycopg.AsyncConnection):
        return partial(fetch_async, connection)
    blocking = bind_sync(within)
    return None if blocking is None else partial(block, blocking)


def bind_sync(within: Any) -> FetchSync | None:
    if isinstance(within, psycopg.AsyncCursor | psycopg.AsyncConnection):
        raise TypeError(
            "within= is an async psycopg connection: use `await chancy.push(…)`, "
            "or pass a sync connection"
        )
    connection = within.connection if isinstance(within, psycopg.Cursor) else within
    return partial(fetch, connection) if isinstance(connection, psycopg.Connection) else None


def fetch(connection: psycopg.Connection[Any], sql: str, *params: object) -> list[Any]:
    """Run one statement on a blocking connection."""
    cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
    cursor.execute(sql.encode(), params)
    return cursor.fetchall() if cursor.description else []


async def fetch_async(
    connection: psycopg.AsyncConnection[Any], sql: str, *params: object
) -> list[Any]:
    """Run one statement on an async connection."""
    cursor = psycopg.AsyncRawCursor(connection, row_factory=tuple_row)
    await cursor.execute(sql.encode(), params)
    return await cursor.fetchall() if cursor.description else []

"""Statements of tests, past the broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

#: A DSN, or an open session: a new one costs the server some milliseconds.
Where = str | psycopg.Connection[Any]
Parameters = Sequence[object] | Mapping[str, object]


def ask(where: Where, sql: str, params: Parameters = ()) -> list[tuple[Any, ...]]:
    """Run one statement; without a session, in one of its own."""
    if isinstance(where, str):
        with psycopg.connect(where, autocommit=True) as connection:
            return ask(connection, sql, params)
    cursor = where.execute(sql.encode(), params or None)
    # A row may have no columns, as of `select from`.
    result = cursor.pgresult
    returned = result is not None and result.status == ExecStatus.TUPLES_OK
    return cursor.fetchall() if returned else []


def count(where: Where, rows: str = "chancy.jobs", params: Parameters = ()) -> int:
    """How many rows there are of a table, or of what follows `from`."""
    ((found,),) = ask(where, f"select count(*) from {rows}", params)
    return int(found)

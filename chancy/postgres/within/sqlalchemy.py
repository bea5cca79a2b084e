"""SQLAlchemy 2: sessions and connections, sync and async, over asyncpg and psycopg 3.

Statements go through SQLAlchemy's own connection, not to the driver's below it. SQLAlchemy sends
no BEGIN to asyncpg before its own first statement: one that is sent past it commits at once.
And so errors are SQLAlchemy's, a lost connection leaves its pool, and ``echo`` shows ours too.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache, partial
from typing import Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import MissingGreenlet

from chancy.postgres.within.calls import Fetch, FetchSync

_DOLLAR = re.compile(r"\$(\d+)")
#: An option of the caller's connection would have a cursor declared for an insertion.
_OPTIONS = {"stream_results": False}


def bind(within: Any) -> Fetch | None:
    if (asynchronous := sys.modules.get("sqlalchemy.ext.asyncio")) is not None:
        if isinstance(within, asynchronous.async_scoped_session):
            within = within.registry()  # now: it may go by the task
        if isinstance(within, asynchronous.AsyncSession | asynchronous.AsyncConnection):
            return partial(_fetch, within)
    blocking = bind_sync(within)
    return None if blocking is None else partial(_block, blocking)


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
            "or pass the Session that its run_sync gives"
        )
    return None


async def _fetch(within: Any, sql: str, *params: object) -> list[Any]:
    return list(await within.run_sync(_run, sql, *params))


async def _block(blocking: FetchSync, sql: str, *params: object) -> list[Any]:
    return list(blocking(sql, *params))


def _run(within: Any, sql: str, *params: object) -> list[Any]:
    """Run one statement in the current transaction, which begins with it if there is none."""
    try:
        connection = within if isinstance(within, Connection) else within.connection()
        driver = f"{connection.dialect.name}+{connection.dialect.driver}"
        match driver:
            case "postgresql+asyncpg":
                done = connection.exec_driver_sql(sql, params, execution_options=_OPTIONS)
            case "postgresql+psycopg" | "postgresql+psycopg_async":
                named = {f"p{number}": value for number, value in enumerate(params, 1)}
                done = connection.exec_driver_sql(_pyformat(sql), named, execution_options=_OPTIONS)
            case _:
                raise TypeError(
                    f"within= is of an SQLAlchemy engine for {driver}: use one for "
                    "postgresql+psycopg (psycopg 3) or postgresql+asyncpg"
                )
        return list(done.fetchall()) if done.returns_rows else []
    except MissingGreenlet as error:
        raise TypeError(
            f"within= is a sync {type(within).__name__} of an async SQLAlchemy engine: use "
            "`await chancy.push(…)` with the AsyncSession or AsyncConnection, or call sync_push "
            "inside of its run_sync"
        ) from error


@lru_cache(maxsize=128)
def _pyformat(sql: str) -> str:
    """Our statement for psycopg's usual cursors, which SQLAlchemy makes."""
    return _DOLLAR.sub(r"%(p\1)s", sql.replace("%", "%%"))

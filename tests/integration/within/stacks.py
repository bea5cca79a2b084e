"""The libraries that bring a transaction, each made to look the same for the tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from contextlib import asynccontextmanager as async_context
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import asyncpg
import psycopg
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError, InternalError
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from tests.support.django_project import databases

#: Rows of another shape than ours.
DICTIONARIES: Any = dict_row


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncStack:
    """A connection of a library for code with an event loop.

    :param failed: what a statement raises in a transaction in which another one has failed.
    """

    within: Any
    execute: Callable[[str], Awaitable[object]]
    transaction: Callable[[], AbstractAsyncContextManager[object]]
    savepoint: Callable[[], AbstractAsyncContextManager[object]]
    failed: type[Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStack:
    """The same for code without one."""

    within: Any
    execute: Callable[[str], object]
    transaction: Callable[[], AbstractContextManager[object]]
    savepoint: Callable[[], AbstractContextManager[object]]
    failed: type[Exception]


def url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


def sqlstate(error: BaseException) -> object:
    """The SQLSTATE, wherever the library has it."""
    for place in (error, getattr(error, "orig", None), error.__cause__):
        if (found := getattr(place, "sqlstate", None)) is not None:
            return found
    return None


# With an event loop


@async_context
async def async_psycopg(dsn: str) -> AsyncGenerator[AsyncStack]:
    # In autocommit mode, so that a block of `transaction` is all that there is.
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, row_factory=DICTIONARIES
    ) as connection:
        yield AsyncStack(
            within=connection,
            execute=lambda sql: connection.execute(sql.encode()),
            transaction=connection.transaction,
            savepoint=connection.transaction,
            failed=psycopg.errors.InFailedSqlTransaction,
        )


@async_context
async def async_psycopg_cursor(dsn: str) -> AsyncGenerator[AsyncStack]:
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        yield AsyncStack(
            within=cursor,
            execute=lambda sql: cursor.execute(sql.encode()),
            transaction=connection.transaction,
            savepoint=connection.transaction,
            failed=psycopg.errors.InFailedSqlTransaction,
        )


@async_context
async def native_asyncpg(dsn: str) -> AsyncGenerator[AsyncStack]:
    connection = await asyncpg.connect(dsn)
    try:
        yield _asyncpg(connection)
    finally:
        await connection.close()


@async_context
async def pooled_asyncpg(dsn: str) -> AsyncGenerator[AsyncStack]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as taken:
        yield _asyncpg(taken)


def _asyncpg(connection: Any) -> AsyncStack:
    return AsyncStack(
        within=connection,
        execute=connection.execute,
        transaction=connection.transaction,
        savepoint=connection.transaction,
        failed=asyncpg.InFailedSQLTransactionError,
    )


def async_session(driver: str) -> Callable[[str], AbstractAsyncContextManager[AsyncStack]]:
    @async_context
    async def opened(dsn: str) -> AsyncGenerator[AsyncStack]:
        engine = create_async_engine(url(dsn, driver), poolclass=NullPool)
        async with AsyncSession(engine) as session:
            yield _of_sqlalchemy(session, driver)
        await engine.dispose()

    return opened


def async_connection(driver: str) -> Callable[[str], AbstractAsyncContextManager[AsyncStack]]:
    @async_context
    async def opened(dsn: str) -> AsyncGenerator[AsyncStack]:
        engine = create_async_engine(url(dsn, driver), poolclass=NullPool)
        async with engine.connect() as connection:
            yield _of_sqlalchemy(connection, driver)
        await engine.dispose()

    return opened


@async_context
async def scoped_async_session(dsn: str) -> AsyncGenerator[AsyncStack]:
    """One session for each task, as web applications have it."""
    from asyncio import current_task

    engine = create_async_engine(url(dsn, "asyncpg"), poolclass=NullPool)
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=current_task)
    yield _of_sqlalchemy(session, "asyncpg")
    await session.remove()
    await engine.dispose()


def _of_sqlalchemy(taken: Any, driver: str) -> AsyncStack:
    return AsyncStack(
        within=taken,
        execute=lambda sql: taken.execute(text(sql)),
        transaction=taken.begin,
        savepoint=taken.begin_nested,
        failed=InternalError if driver == "psycopg" else DBAPIError,
    )


ASYNC_STACKS: dict[str, Callable[[str], AbstractAsyncContextManager[AsyncStack]]] = {
    "psycopg connection": async_psycopg,
    "psycopg cursor": async_psycopg_cursor,
    "asyncpg connection": native_asyncpg,
    "asyncpg pool": pooled_asyncpg,
    "AsyncSession on asyncpg": async_session("asyncpg"),
    "AsyncSession on psycopg": async_session("psycopg"),
    "AsyncConnection on asyncpg": async_connection("asyncpg"),
    "AsyncConnection on psycopg": async_connection("psycopg"),
    "async_scoped_session": scoped_async_session,
}


# Without


@contextmanager
def blocking_psycopg(dsn: str) -> Generator[SyncStack]:
    with psycopg.connect(dsn, autocommit=True, row_factory=DICTIONARIES) as connection:
        yield _psycopg(connection, connection)


@contextmanager
def blocking_psycopg_cursor(dsn: str) -> Generator[SyncStack]:
    with psycopg.connect(dsn, autocommit=True) as connection, connection.cursor() as cursor:
        yield _psycopg(connection, cursor)


def _psycopg(connection: psycopg.Connection[Any], within: Any) -> SyncStack:
    return SyncStack(
        within=within,
        execute=lambda sql: within.execute(sql.encode()),
        transaction=connection.transaction,
        savepoint=connection.transaction,
        failed=psycopg.errors.InFailedSqlTransaction,
    )


@contextmanager
def blocking_session(dsn: str) -> Generator[SyncStack]:
    engine = create_engine(url(dsn, "psycopg"), poolclass=NullPool)
    with Session(engine) as session:
        yield _of_sync_sqlalchemy(session)
    engine.dispose()


@contextmanager
def blocking_scoped_session(dsn: str) -> Generator[SyncStack]:
    engine = create_engine(url(dsn, "psycopg"), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    yield _of_sync_sqlalchemy(session)
    session.remove()
    engine.dispose()


@contextmanager
def blocking_connection(dsn: str) -> Generator[SyncStack]:
    engine = create_engine(url(dsn, "psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        yield _of_sync_sqlalchemy(connection)
    engine.dispose()


def _of_sync_sqlalchemy(taken: Any) -> SyncStack:
    return SyncStack(
        within=taken,
        execute=lambda sql: taken.execute(text(sql)),
        transaction=taken.begin,
        savepoint=taken.begin_nested,
        failed=InternalError,
    )


def django_stack(alias: str, *, cursor: bool = False) -> Callable[[str], Any]:
    @contextmanager
    def opened(dsn: str) -> Generator[SyncStack]:
        from django.db import InternalError as DjangoInternalError
        from django.db import connection, connections

        atomic: Any = import_module("django.db.transaction").atomic

        with databases(dsn):
            here = connection if alias == "default" else connections[alias]

            def execute(sql: str) -> None:
                with here.cursor() as own:
                    own.execute(sql)

            yield SyncStack(
                within=here.cursor() if cursor else here,
                execute=execute,
                transaction=lambda: atomic(using=alias),
                savepoint=lambda: atomic(using=alias),
                failed=DjangoInternalError,
            )

    return opened


SYNC_STACKS: dict[str, Callable[[str], AbstractContextManager[SyncStack]]] = {
    "psycopg connection": blocking_psycopg,
    "psycopg cursor": blocking_psycopg_cursor,
    "Session": blocking_session,
    "scoped_session": blocking_scoped_session,
    "Connection": blocking_connection,
    "Django's connection": django_stack("default"),
    "Django's connections['other']": django_stack("other"),
    "Django's cursor": django_stack("default", cursor=True),
}

"""What is taken as ``within``, what is refused, and how the edges of the libraries are met."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import IntegrityError, ProgrammingError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from chancy import Chancy, DuplicateJob, Unique
from chancy.errors import SchemaMismatch
from chancy.postgres.within import fetch_within, fetch_within_sync
from tests.integration.within.stacks import sqlstate, url
from tests.support import jobs
from tests.support.django_project import databases
from tests.support.presence import present
from tests.support.sql import count

JOB = jobs.note.job(value=1)


@pytest.fixture
async def chancy(dsn: str) -> AsyncIterator[Chancy]:
    async with Chancy(dsn, pool_size=2) as made:
        with made:
            yield made


@pytest.fixture
async def engine(dsn: str) -> AsyncIterator[AsyncEngine]:
    made = create_async_engine(url(dsn, "asyncpg"), poolclass=NullPool)
    yield made
    await made.dispose()


@pytest.fixture
def blocking(dsn: str) -> Iterator[Engine]:
    made = create_engine(url(dsn, "psycopg"), poolclass=NullPool)
    yield made
    made.dispose()


@pytest.fixture
def django(dsn: str) -> Iterator[None]:
    with databases(dsn):
        yield


# What is refused


def wrong(dsn: str) -> list[object]:
    return [
        "postgresql://ann:secret@localhost/shop",
        object(),
        psycopg.Connection,
        psycopg_pool.ConnectionPool(dsn, open=False),
        create_engine(url(dsn, "psycopg")),
        create_async_engine(url(dsn, "asyncpg")),
        sessionmaker(),
        text("select 1"),
    ]


async def test_other_objects_are_refused_with_those_that_are_taken(
    chancy: Chancy, dsn: str
) -> None:
    for within in wrong(dsn):
        with pytest.raises(
            TypeError,
            match=r"chancy\.transaction\(\).*psycopg 3 connection or cursor.*asyncpg connection"
            r".*AsyncSession, AsyncConnection, Session or Connection, not a .*",
        ) as raised:
            await chancy.push(JOB, within=within)
        assert "secret" not in str(raised.value)
        with pytest.raises(TypeError, match="within= must be"):
            await chancy.push_many([JOB], within=within)
    assert count(dsn) == 0


def test_other_objects_are_refused_without_an_event_loop(dsn: str) -> None:
    with Chancy(dsn) as chancy:
        for within in wrong(dsn):
            with pytest.raises(
                TypeError, match=r"sync psycopg 3 connection.*Session or Connection.*Django's"
            ):
                chancy.sync_push(JOB, within=within)
    assert count(dsn) == 0


async def test_async_objects_are_refused_by_sync_push(
    chancy: Chancy, engine: AsyncEngine, dsn: str
) -> None:
    native = await asyncpg.connect(dsn)
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    async with (
        await psycopg.AsyncConnection.connect(dsn) as connection,
        AsyncSession(engine) as session,
        engine.connect() as core,
        chancy.transaction() as own,
    ):
        for within in (native, connection, connection.cursor(), session, core, scoped, own):
            with pytest.raises(TypeError, match=r"use `await chancy\.push\(…\)`"):
                chancy.sync_push(JOB, within=within)
            with pytest.raises(TypeError, match=r"use `await chancy\.push\(…\)`"):
                chancy.sync_push_many([JOB], within=within)
    await native.close()
    assert count(dsn) == 0


async def test_a_sync_session_of_an_async_engine_reports_where_to_go(
    chancy: Chancy, engine: AsyncEngine, dsn: str
) -> None:
    async with AsyncSession(engine) as session:
        with pytest.raises(TypeError, match="with the AsyncSession or AsyncConnection"):
            await chancy.push(JOB, within=session.sync_session)
        await session.execute(text("select 1"))
        with pytest.raises(TypeError, match="inside its run_sync"):
            chancy.sync_push(JOB, within=session.sync_session)
    assert count(dsn) == 0


async def test_django_is_refused_by_push_with_the_way_to_go(
    chancy: Chancy, django: None, dsn: str
) -> None:
    from django.db import connection, connections

    for within in (connection, connections["other"]):
        with pytest.raises(TypeError, match=r"chancy\.sync_push.*sync_to_async"):
            await chancy.push(JOB, within=within)
    assert count(dsn) == 0


def test_other_databases_are_refused_by_name(dsn: str, django: None) -> None:
    from django.core.cache import cache
    from django.db import connections

    lite = create_engine("sqlite://")
    with Chancy(dsn) as chancy:
        with lite.connect() as connection, pytest.raises(TypeError, match=r"sqlite\+pysqlite"):
            chancy.sync_push(JOB, within=connection)
        with pytest.raises(TypeError, match=r"'lite' to SQLite.*psycopg 3"):
            chancy.sync_push(JOB, within=connections["lite"])
        with pytest.raises(TypeError, match=r"within= must be .*, not a "):
            chancy.sync_push(JOB, within=cache)
    lite.dispose()
    assert count(dsn) == 0


# Sync objects in an event loop


async def test_sync_objects_are_taken_by_push(chancy: Chancy, blocking: Engine, dsn: str) -> None:
    with psycopg.connect(dsn) as connection, Session(blocking) as session:
        core = session.connection()
        for within in (connection, connection.cursor(), session, core):
            await chancy.push(JOB, within=within)
            await chancy.push_many([JOB] * 2_000, within=within)
        assert count(dsn) == 0
        session.rollback()
        connection.commit()
    assert count(dsn) == 2 * 2_001


async def test_sync_push_inside_of_run_sync(chancy: Chancy, engine: AsyncEngine, dsn: str) -> None:
    for driver in ("asyncpg", "psycopg"):
        other = create_async_engine(url(dsn, driver), poolclass=NullPool)

        def work(session: Session, error: type[Exception] | None) -> None:
            chancy.sync_push(JOB, within=session)
            chancy.sync_push_many([JOB] * 3, within=session.connection())
            if error is not None:
                raise error

        before = count(dsn)
        with suppress(ZeroDivisionError):
            async with AsyncSession(other) as session, session.begin():
                await session.run_sync(work, ZeroDivisionError)
        assert count(dsn) == before
        async with AsyncSession(other) as session, session.begin():
            await session.run_sync(work, None)
        assert count(dsn) == before + 4
        await other.dispose()


# Outside of a transaction


async def test_autocommit_commits_at_once(chancy: Chancy, dsn: str) -> None:
    native = await asyncpg.connect(dsn)
    await chancy.push(JOB, within=native)
    await native.close()
    assert count(dsn) == 1
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await chancy.push(JOB, within=connection)
        assert count(dsn) == 2
    for number, driver in enumerate(("asyncpg", "psycopg")):
        engine = create_async_engine(
            url(dsn, driver), poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        async with engine.connect() as core:
            await chancy.push(JOB, within=core)
            await chancy.push(JOB, within=core)
            assert count(dsn) == 2 + 2 * (number + 1)
        await engine.dispose()


def test_django_outside_of_atomic_commits_at_once(dsn: str, django: None) -> None:
    from django.db import connection

    with Chancy(dsn) as chancy:
        chancy.sync_push(JOB, within=connection)
        assert count(dsn) == 1


# Errors


async def test_errors_are_those_of_sqlalchemy(dsn: str, chancy: Chancy) -> None:
    """Whether SQLAlchemy or the driver's connection carried the statement."""
    elsewhere = Chancy(dsn, schema="elsewhere")
    for driver in ("asyncpg", "psycopg"):
        engine = create_async_engine(url(dsn, driver), poolclass=NullPool)
        for first in ("", "select 1"):
            async with AsyncSession(engine) as session:
                if first:
                    await session.execute(text(first))
                with pytest.raises(ProgrammingError, match="elsewhere") as raised:
                    await elsewhere.push(JOB, within=session)
                assert sqlstate(raised.value) == "42P01"
        await engine.dispose()


async def test_a_failed_flush_gives_its_error(
    chancy: Chancy, engine: AsyncEngine, dsn: str
) -> None:
    async with AsyncSession(engine) as session:
        await session.execute(text("create table orders (id int primary key)"))
        with pytest.raises(IntegrityError):
            async with session.begin_nested():
                await session.execute(text("insert into orders values (1), (1)"))
        await chancy.push(JOB, within=session)
        await session.commit()
    assert count(dsn) == 1


def test_errors_are_those_of_django(dsn: str, django: None) -> None:
    from django.db import ProgrammingError as DjangoProgrammingError
    from django.db import connection
    from django.db.transaction import TransactionManagementError

    atomic: Any = import_module("django.db.transaction").atomic

    with Chancy(dsn) as chancy:

        def broken() -> None:
            with atomic():
                with suppress(KeyError), atomic(savepoint=False):
                    raise KeyError
                chancy.sync_push(JOB, within=connection)

        with pytest.raises(TransactionManagementError):
            broken()
        with connection.cursor() as cursor:
            cursor.execute("alter schema chancy rename to away")
        with pytest.raises(SchemaMismatch) as raised, atomic():
            chancy.sync_push(JOB, within=connection)
        assert isinstance(raised.value.__cause__, DjangoProgrammingError)
        assert sqlstate(raised.value.__cause__) == "42P01"
        with connection.cursor() as cursor:
            cursor.execute("alter schema away rename to chancy")
    assert count(dsn) == 0


async def test_django_in_the_thread_of_an_event_loop_is_refused_by_django(
    chancy: Chancy, django: None, dsn: str
) -> None:
    from django.core.exceptions import SynchronousOnlyOperation
    from django.db import connection

    with pytest.raises(SynchronousOnlyOperation):
        chancy.sync_push(JOB, within=connection)
    assert count(dsn) == 0


# The edges of SQLAlchemy


async def test_a_session_of_each_task_is_that_of_the_caller(
    chancy: Chancy, engine: AsyncEngine, dsn: str
) -> None:
    """Statements of a bulk push run in tasks of their own, where the session is another one."""
    scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
    await chancy.push_many([JOB] * 2_500, within=scoped)
    await scoped.rollback()
    assert count(dsn) == 0
    await chancy.push_many([JOB] * 2_500, within=scoped)
    await scoped.commit()
    assert len(scoped.registry.registry) == 1
    await scoped.remove()
    assert count(dsn) == 2_500


async def test_a_connection_that_has_begun_nothing(
    chancy: Chancy, engine: AsyncEngine, blocking: Engine, dsn: str
) -> None:
    """`commit` and `rollback` know of what the push began."""
    over_psycopg = create_async_engine(url(dsn, "psycopg"), poolclass=NullPool)
    for number, made in enumerate((engine, over_psycopg), 1):
        async with made.connect() as core:
            await chancy.push(JOB, within=core)
            await core.rollback()
            await chancy.push(JOB, within=core)
            await core.commit()
        assert count(dsn) == number
    await over_psycopg.dispose()
    with blocking.connect() as sync_core:
        chancy.sync_push(JOB, within=sync_core)
        sync_core.rollback()
        chancy.sync_push(JOB, within=sync_core)
        sync_core.commit()
    assert count(dsn) == 3


async def test_options_for_rows_of_the_caller_do_not_reach_ours(
    chancy: Chancy, engine: AsyncEngine, blocking: Engine, dsn: str
) -> None:
    async with engine.connect() as made:
        streaming = await made.execution_options(stream_results=True)
        await chancy.push(JOB, within=streaming)
        await chancy.push(JOB, within=streaming)
        await streaming.commit()
    with blocking.connect().execution_options(stream_results=True) as core:
        chancy.sync_push(JOB, within=core)
        core.commit()
    assert count(dsn) == 3


async def test_codecs_of_the_caller_do_not_reach_ours(chancy: Chancy, dsn: str) -> None:
    unique = jobs.note.job(value=1).with_unique(Unique())
    connection = await asyncpg.connect(dsn)
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name, encoder=json.dumps, decoder=json.loads, schema="pg_catalog"
        )
    await connection.set_type_codec(
        "uuid", encoder=str, decoder=str, schema="pg_catalog", format="text"
    )
    async with connection.transaction():
        stored = await chancy.push(unique.with_meta(shop=1), within=connection)
        again = await chancy.push(unique, within=connection)
        assert again == stored
        assert not again.created
        [other] = await chancy.push_many([unique], within=connection)
        assert other == stored
        refused = unique.with_unique(Unique(on_conflict="raise"))
        with pytest.raises(DuplicateJob) as raised:
            await chancy.push(refused, within=connection)
        assert raised.value.id == stored.id
    await connection.close()
    found = present(await stored.get())
    assert (found.arguments, found.meta) == ({"value": 1}, {"shop": 1})


def test_a_class_derived_from_session_is_one(chancy_sync: Chancy, blocking: Engine) -> None:
    derived = type("Own", (Session,), {"__module__": "shop.database"})
    with derived(blocking) as session:
        reference = chancy_sync.sync_push(JOB, within=session)
        session.commit()
    assert chancy_sync.sync_get_job(reference.id) is not None


@pytest.fixture
def chancy_sync(dsn: str) -> Iterator[Chancy]:
    with Chancy(dsn) as made:
        yield made


# The seam for other statements


async def test_any_statement_of_ours_runs_within(dsn: str, engine: AsyncEngine) -> None:
    make, fill = "create temporary table things (id int, name text)", "insert into things"
    async with engine.connect() as core, AsyncSession(engine) as session:
        for within in (core, session):
            assert await fetch_within(within, make) == []
            assert await fetch_within(within, f"{fill} values ($1, $2)", 1, "%s") == []
            found = await fetch_within(within, "select id, name from things where id = $1", 1)
            assert [tuple(row) for row in found] == [(1, "%s")]


def test_any_statement_of_ours_runs_within_sync(dsn: str, blocking: Engine, django: None) -> None:
    from django.db import connection as django_connection

    make, fill = "create temporary table things (id int, name text)", "insert into things"
    with psycopg.connect(dsn) as connection, blocking.connect() as core:
        for within in (connection, core, django_connection):
            assert fetch_within_sync(within, make) == []
            assert fetch_within_sync(within, f"{fill} values ($1, $2)", 1, "%s") == []
            found = fetch_within_sync(within, "select id, name from things where id = $1", 1)
            assert [tuple(row) for row in found] == [(1, "%s")]


# What is imported


def run(program: str, dsn: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, dsn, url(dsn, "psycopg")],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_library_is_imported_that_the_caller_does_not_use(dsn: str) -> None:
    program = """
import asyncio, sys, asyncpg
from chancy import Chancy, Job
async def main():
    async with Chancy(sys.argv[1]) as chancy:
        connection = await asyncpg.connect(sys.argv[1])
        await chancy.push(Job(func="a.b"), within=connection, validate=False)
        await connection.close()
    print(sorted({"django", "sqlalchemy"} & set(sys.modules)))
asyncio.run(main())
"""
    assert run(program, dsn).strip() == "[]"


def test_sqlalchemy_without_greenlet(dsn: str) -> None:
    """It is installed only for SQLAlchemy's asyncio part."""
    program = """
import sys
sys.modules["greenlet"] = None
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from chancy import Chancy, Job
engine = create_engine(sys.argv[2])
with Chancy(sys.argv[1]) as chancy:
    with Session(engine) as session, session.begin():
        chancy.sync_push(Job(func="a.b"), within=session, validate=False)
engine.dispose()
print("sqlalchemy.ext.asyncio" in sys.modules)
"""
    assert run(program, dsn).strip() == "False"
    assert count(dsn) == 1

"""What pushes say where tables are missing or of another version."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Literal

import psycopg
import pytest

from chancy import Chancy, SchemaMismatch, StatementFailed, Unique
from chancy.postgres.schema import migrate as schema
from chancy.postgres.schema.component import HEAD
from tests.migrations import next_release
from tests.migrations.next_release import NEXT
from tests.support import jobs


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_push_without_tables_gives_advice(
    empty_dsn: str, driver: Literal["asyncpg", "psycopg"]
) -> None:
    said = re.escape("has no tables of chancy: run `chancy migrate upgrade`")
    unique = jobs.note.job(value=1).with_unique(Unique(key="one"))
    async with Chancy(empty_dsn, driver=driver) as chancy:
        for job in (jobs.note.job(value=1), unique):
            with pytest.raises(SchemaMismatch, match=said):
                await chancy.push(job)
        for many in (2, 2_000):
            with pytest.raises(SchemaMismatch, match=said):
                await chancy.push_many([jobs.note.job(value=1)] * many)
        with pytest.raises(SchemaMismatch, match=said):
            async with chancy.transaction() as mine:
                await chancy.push(jobs.note.job(value=1), within=mine)
        with pytest.raises(StatementFailed) as failed:
            async with chancy.transaction() as mine:
                await mine.fetch("select * from orders")
        assert str(failed.value) == 'relation "orders" does not exist (SQLSTATE 42P01)'
    with chancy:
        for job in (jobs.note.job(value=1), unique):
            with pytest.raises(SchemaMismatch, match=said):
                chancy.sync_push(job)
        with pytest.raises(SchemaMismatch, match=said):
            chancy.sync_push_many([jobs.note.job(value=1)] * 2)


async def test_a_push_on_tables_of_another_version_gives_advice(
    empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(schema.upgrade, empty_dsn)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("chancy.postgres.schema.status.CORE", next_release.written(tmp_path))
    said = re.escape(f"are at revision {HEAD}, but this version of chancy needs {NEXT}")
    # As if it had come with that revision.
    with psycopg.connect(empty_dsn, autocommit=True) as session:
        [(signature,)] = session.execute(
            "select oid::regprocedure::text from pg_proc where proname = 'push_unique'"
        ).fetchall()
        session.execute(f"drop function {signature}".encode())
    job = jobs.note.job(value=1).with_unique(Unique(key="one"))
    async with Chancy(empty_dsn) as chancy:
        with pytest.raises(SchemaMismatch, match=said):
            await chancy.push(job)
    with chancy, pytest.raises(SchemaMismatch, match=said):
        chancy.sync_push(job)


async def test_a_push_with_tables_tells_what_else_is_missing(dsn: str) -> None:
    """As for a trigger of somebody's own."""
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(
            "create function mine() returns trigger language plpgsql as"
            " 'begin insert into nowhere values (1); return new; end'"
        )
        session.execute(
            "create trigger mine after insert on chancy.jobs for each row execute function mine()"
        )
    async with Chancy(dsn) as chancy:
        with pytest.raises(StatementFailed, match='"nowhere" does not exist'):
            await chancy.push(jobs.note.job(value=1))
    with chancy, pytest.raises(StatementFailed, match='"nowhere" does not exist'):
        chancy.sync_push(jobs.note.job(value=1))

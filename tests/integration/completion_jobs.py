"""Functions of jobs that complete themselves together with what they write."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from chancy import current_job, job

EFFECTS = "create table if not exists effects (job uuid, what text)"
_INSERT = "insert into effects values ($1, $2)"


class Wanted(Exception):
    """What a job raises because the test wants it to."""


async def complete(dsn: str, then: str = "") -> str | dict[str, int]:
    """In a transaction of asyncpg. ``then``: how it ends, inside of the transaction or after."""
    this = current_job()
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(_INSERT, this.id, f"attempt {this.attempt}")
            await this.complete_in(connection, {"done": 1})
            if then == "roll back" and this.attempt == 1:
                raise Wanted("inside")
        if then == "raise":
            raise Wanted("after the commit")
        if then == "die":
            os._exit(9)
    finally:
        await connection.close()
    return "dropped"


def sync_complete(dsn: str, then: str = "") -> str | dict[str, int]:
    """In a transaction of psycopg."""
    this = current_job()
    with psycopg.connect(dsn) as connection:
        this.progress(0.5, "before")
        insert = "insert into effects values (%s, %s)"
        connection.execute(insert, (this.id, f"attempt {this.attempt}"))
        this.sync_complete_in(connection, {"done": 1})
        this.progress(0.9, "never stored")
        if then == "roll back" and this.attempt == 1:
            raise Wanted("inside")
    if then == "raise":
        raise Wanted("after the commit")
    if then == "die":
        os._exit(9)
    return "dropped"


complete_job: Any = job(complete)
sync_complete_job: Any = job(sync_complete)


@job
async def complete_in_session(dsn: str) -> dict[str, int] | None:
    """In a session of SQLAlchemy."""
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
    async with AsyncSession(engine) as session, session.begin():
        this = current_job()
        insert = text("insert into effects values (:job, 'session')")
        await session.execute(insert, {"job": this.id})
        await this.complete_in(session, {"done": 1})
    await engine.dispose()
    return None


@job(max_attempts=1)
async def lose(dsn: str) -> str:
    """Has lost its lease when it wants to complete itself."""
    this = current_job()
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        await connection.execute("update chancy.jobs set lease = gen_random_uuid()")
        await connection.commit()
        insert = "insert into effects values (%s, 'lost')"
        await connection.execute(insert, (this.id,))
        await this.complete_in(connection)
    return "never"


# What has steps.


def _exists(path: str) -> bool:
    return Path(path).exists()


def _append(path: str, text: str) -> str:
    with Path(path).open("a") as file:
        file.write(f"{text}\n")
    return text


@job
def three_checkpoints(path: str, die_after: int) -> list[str]:
    """Kills the process that it runs in after that step, the first time."""
    this = current_job()
    found = []
    for number in range(1, 4):
        found.append(
            this.sync_checkpoint(f"checkpoint {number}", _append, path, f"checkpoint {number}")
        )
        if number == die_after and not this.crashes and this.attempt == 1:
            os._exit(9)
    return found


@job(max_attempts=2)
async def checkpoints_and_raise(path: str) -> str:
    this = current_job()
    await this.checkpoint("first", _append, path, "first")
    if this.attempt == 1:
        raise Wanted("between the steps")
    return await this.checkpoint("second", _append, path, "second")


@job
async def checkpoints_of_a_zombie(path: str, go: str) -> str:
    this = current_job()
    await this.checkpoint("first", _append, path, "first")
    while not _exists(go):  # noqa: ASYNC110  the test makes it
        await asyncio.sleep(0.01)
    return await this.checkpoint("second", _append, path, "second")

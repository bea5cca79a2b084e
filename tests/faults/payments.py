"""Jobs that complete themselves in the transaction of what they write, and pause in the middle of
it; and jobs of several steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from chancy import current_job, job
from tests.faults import book as books

Execute = Callable[[str], Awaitable[object]]

TABLE = "create table payments (number int, attempt int)"


def _pause(place: str, folder: str) -> bool:
    """The first to come here waits for a file. Whether this is the first."""
    path = Path(folder)
    try:
        (path / place).touch(exist_ok=False)
    except FileExistsError:
        return False
    while not (path / "go").exists():
        time.sleep(0.01)
    return True


def _note(folder: str, text: str) -> None:
    (Path(folder) / "raised").write_text(text)


@job(queue="load", max_attempts=1)
def pay(dsn: str, folder: str, number: int, pause: str) -> None:
    """``pause``: before or after it completes itself. What its transaction raises is written to a
    file, since nobody hears of the outcome of a zombie."""
    this = current_job()
    try:
        with psycopg.connect(dsn) as connection:
            # So that a test need not wait for the ten seconds which there are otherwise.
            connection.execute("set idle_in_transaction_session_timeout = '1s'")
            connection.commit()
            row = (number, this.attempt)
            connection.execute("insert into payments values (%s, %s)", row)
            if pause == "before":
                # The session is not idle here, or the server would end it for that.
                connection.execute("set local idle_in_transaction_session_timeout = 0")
                _pause(pause, folder)
            this.sync_complete_in(connection)
            if pause == "after":
                _pause(pause, folder)
    except Exception as error:
        _note(folder, type(error).__name__)
        raise


@asynccontextmanager
async def _asyncpg(dsn: str) -> AsyncGenerator[tuple[object, Execute]]:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            yield connection, connection.execute
    finally:
        await connection.close()


@asynccontextmanager
async def _session(dsn: str) -> AsyncGenerator[tuple[object, Execute]]:
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://", 1))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session, lambda sql: session.execute(text(sql))
    finally:
        await engine.dispose()


#: What opens a transaction of a library with an event loop.
TRANSACTIONS = {"asyncpg": _asyncpg, "AsyncSession": _session}


@job(queue="load", max_attempts=1)
async def pay_async(dsn: str, folder: str, number: int, library: str) -> None:
    """`pay` for code with an event loop, which does not heed that it is told to stop."""
    this = current_job()
    try:
        async with TRANSACTIONS[library](dsn) as (transaction, execute):
            # Not idle here, or the server would end the session for that.
            await execute("set local idle_in_transaction_session_timeout = 0")
            await execute(f"insert into payments values ({number}, {this.attempt})")
            if _pause("before", folder):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(20)
            await this.complete_in(transaction)
    except Exception as error:
        _note(folder, type(error).__name__)
        raise


@job(queue="load", max_attempts=1)
def in_steps(book: str, folder: str, number: int, steps: int) -> list[int]:
    """Pauses between its steps, in the middle of them."""
    this = current_job()
    done: list[int] = []
    for step in range(steps):
        if step == steps // 2:
            _pause("between", folder)
        done.append(this.sync_step(f"step {step}", _one_step, book, number * 100 + step))
    return done


def _one_step(book: str, number: int) -> int:
    books.write(book, number, "begin")
    return number

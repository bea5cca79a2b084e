"""Jobs that complete themselves in their own transaction and pause in it; jobs with steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg

from chancy import current_job, job
from tests.faults import book as books

Execute = Callable[[str], Awaitable[object]]

TABLE = "create table payments (number int, attempt int)"


def _pause(place: str, folder: str) -> bool:
    """The first caller waits for a file. Returns whether this is the first call."""
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
    """Completes itself in a transaction.

    An error of the transaction is written to a file, as the outcome of a zombie is not reported.

    :param pause: "before" or "after" the completion.
    """
    import psycopg  # for the reason below

    this = current_job()
    try:
        with psycopg.connect(dsn) as connection:
            # So that a test need not wait for the default of ten seconds.
            connection.execute("set idle_in_transaction_session_timeout = '1s'")
            connection.commit()
            row = (number, this.attempt)
            connection.execute("insert into payments values (%s, %s)", row)
            if pause == "before":
                # Disable the timeout here, or the server would end the idle session.
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
    # Every worker process of the tests imports this module, and few of them need these 0.2 s.
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://", 1))
    try:
        async with AsyncSession(engine) as session, session.begin():
            yield session, lambda sql: session.execute(text(sql))
    finally:
        await engine.dispose()


#: Open a transaction of an async library.
TRANSACTIONS = {"asyncpg": _asyncpg, "AsyncSession": _session}


@job(queue="load", max_attempts=1)
async def pay_async(dsn: str, folder: str, number: int, library: str) -> None:
    """`pay` for async code, which ignores its cancellation."""
    this = current_job()
    try:
        async with TRANSACTIONS[library](dsn) as (transaction, execute):
            # Disable the timeout here, or the server would end the idle session.
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
    """Pauses halfway through its steps."""
    this = current_job()
    done: list[int] = []
    for step in range(steps):
        if step == steps // 2:
            _pause("between", folder)
        done.append(this.sync_checkpoint(f"step {step}", _one_step, book, number * 100 + step))
    return done


def _one_step(book: str, number: int) -> int:
    books.write(book, number, "begin")
    return number

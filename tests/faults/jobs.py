"""The job functions of these tests. They record their runs in a book."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from chancy import current_job, job
from tests.faults import book as books
from tests.support.waiting import eventually

if TYPE_CHECKING:
    import asyncio
else:
    from tests.support.late import asyncio


@job(queue="load")
async def work(book: str, number: int, seconds: float = 0.0, until: str = "") -> int:
    """Sleeps without blocking the event loop, or until a file exists."""
    with books.run(book, number):
        if seconds:
            await asyncio.sleep(seconds)
        if until:
            await eventually(Path(until).exists, timeout=100.0)
    return number


@job(queue="load")
async def hold(book: str, number: int) -> int:
    """Sleeps for a minute in its first run, unless it is stopped."""
    with books.run(book, number, ends_anyhow=True):
        if books.begun(book, number) == 1:
            await asyncio.sleep(60)
    return number


@job(queue="load")
async def outlast(book: str, number: int, first_until: str, until: str) -> int:
    """Its first run waits until a file exists, and later runs until another one does."""
    with books.run(book, number):
        first = books.begun(book, number) == 1
        await eventually(Path(first_until if first else until).exists, timeout=100.0)
    return number


@job(queue="load")
def toil(book: str, number: int, seconds: float = 0.0) -> int:
    """`work` as a plain function."""
    with books.run(book, number):
        if seconds:
            time.sleep(seconds)
    return number


#: The number under which `limited` records the runs of all tenants.
ALL_TENANTS = 1_000


@job(queue="load", max_attempts=5)
async def limited(book: str, tenant: int, number: int, seconds: float, failures: int = 0) -> None:
    """Records its run under its tenant, and under that of all; fails ``failures`` times."""
    with (
        books.run(book, ALL_TENANTS, ends_anyhow=True),
        books.run(book, tenant, ends_anyhow=True),
    ):
        books.write(f"{book}-{tenant}", number, "begin")
        await asyncio.sleep(seconds)
        if current_job().attempt <= failures:
            raise ConnectionError(f"job {number} finds nobody")


@job(queue="load")
def die(book: str, number: int) -> None:
    """Kills its process."""
    with books.run(book, number):
        os.kill(os.getpid(), 9)


@job(queue="load", max_attempts=5)
async def stagger(book: str, number: int, failures: int, seconds: float = 0.0) -> int:
    """Fails in its first attempts, by the attempt and not the book, as there are many such jobs."""
    with books.run(book, number):
        if seconds:
            await asyncio.sleep(seconds)
    if current_job().attempt <= failures:
        raise ConnectionError(f"job {number} finds nobody")
    return number


@job(queue="load", max_attempts=5)
async def sustain(number: int, failures: int = 0, seconds: float = 0.0) -> int:
    """`stagger` without a book, for loads of millions."""
    await asyncio.sleep(seconds)
    if current_job().attempt <= failures:
        raise ConnectionError(f"job {number} finds nobody")
    return number


@job(queue="load")
async def probe() -> None:
    """Ends at once."""


@job(queue="load")
async def tick() -> None:
    """The job of cron entries."""

"""Workers are killed again and again: every job of a Redis queue comes to one end."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from chancy import Chancy, State
from chancy.broker import SqlStore
from tests.redis.errands import QUEUE, errand, make
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
#: Pushed at once, and inside of transactions while workers die.
PLAIN, WITHIN, CHUNK = 3_000, 1_000, 50
KILLS = 4
#: Imported: the functions of a main module have other names.
RUN = "import asyncio; from tests.redis.errands import main; asyncio.run(main())"

Process = subprocess.Popen[bytes]


@contextmanager
def worker(dsn: str, url: str, log: Path) -> Generator[Process]:
    environment = {**os.environ, "CHANCY_DSN": dsn, "REDIS_URL": url, "PYTHONPATH": str(ROOT)}
    with log.open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def push_within(chancy: Chancy, book: str) -> Sequence[UUID]:
    """Push in small transactions, each second one undone."""
    ids: list[UUID] = []
    for start in range(0, WITHIN, CHUNK):
        numbers = range(PLAIN + start, PLAIN + start + CHUNK)
        made = [errand.job(book=book, number=number) for number in numbers]
        for number in range(2):
            try:
                async with chancy.transaction() as tx:
                    references = await chancy.push_many(made, within=tx)
                    if number == 0:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                continue
            ids += [one.id for one in references]
        await asyncio.sleep(0.05)
    return ids


@pytest.mark.chaos
async def test_every_job_comes_to_one_end(dsn: str, redis_url: str, tmp_path: Path) -> None:
    book, log = tmp_path / "book", tmp_path / "log"
    book.touch()
    async with make(dsn, redis_url) as chancy:
        await chancy.migrate()
        await chancy.declare(QUEUE)
        plain = await chancy.push_many(
            errand.job(book=str(book), number=number) for number in range(PLAIN)
        )
        ids = [one.id for one in plain]
        pushing = asyncio.create_task(push_within(chancy, str(book)))
        for _ in range(KILLS):
            with worker(dsn, redis_url, log) as first, worker(dsn, redis_url, log) as second:
                for one in (first, second):
                    assert one.stdout is not None
                    assert await asyncio.to_thread(one.stdout.readline) == b"ready\n"
                await chancy.cancel(*random.sample(ids, 100 // KILLS))
                await eventually(partial(goes_on, book, book.stat().st_size), timeout=20.0)
                await asyncio.sleep(random.uniform(0.0, 0.3))
        ids += await pushing
        with worker(dsn, redis_url, log):
            await eventually(lambda: emptied(chancy), timeout=60.0)
            await eventually(lambda: archived(chancy, len(ids)), timeout=30.0)
        await check(chancy, ids, book)


def goes_on(book: Path, before: int) -> bool:
    return book.stat().st_size > before or len(entries(book)) >= PLAIN + WITHIN - 100


def entries(book: Path) -> Counter[int]:
    """How often each number ran."""
    return Counter(map(int, book.read_text().split()))


async def emptied(chancy: Chancy) -> bool:
    counts = (await chancy.counts()).get(QUEUE.name)
    return (counts is None or sum(counts) == 0) and await rows(chancy, "redis_outbox") == 0


async def archived(chancy: Chancy, number: int) -> bool:
    return await rows(chancy, "finished_jobs") >= number


async def rows(chancy: Chancy, table: str) -> int:
    assert isinstance(chancy.broker, SqlStore)
    ((count,),) = await chancy.broker.fetch(f"select count(*) from chancy.{table}")
    return int(count)


async def check(chancy: Chancy, ids: Sequence[UUID], book: Path) -> None:
    """Pushed = succeeded + failed + cancelled; nothing ran twice that no death excuses."""
    assert await rows(chancy, "finished_jobs") == len(ids) == PLAIN + WITHIN
    history = await chancy.control.get(ids)
    assert len(history) == len(ids)
    ends = Counter(one.state for one in history.values())
    assert sum(ends.values()) == len(ids)
    assert ends[State.CANCELLED] <= 100
    runs = entries(book)
    for one in history.values():
        assert one.arguments is not None
        number = one.arguments["number"]
        assert runs[number] <= 1 + one.crashes, f"{number} ran {runs[number]} times"
        wanted = State.FAILED if number % 10 == 0 else State.SUCCEEDED
        assert one.state in (wanted, State.CANCELLED) or one.crashes, one

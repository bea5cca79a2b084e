"""Workers are killed again and again: every job of a Redis queue comes to one end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from chancy import Chancy, State
from tests.plugins.redis.jobs.errand_fleet import archived, check, emptied, entries, ready, worker
from tests.plugins.redis.jobs.errands import QUEUE, errand, make
from tests.support.waiting import eventually

#: Pushed at once, and inside of transactions while workers die.
PLAIN, WITHIN, CHUNK = 3_000, 1_000, 50
KILLS = 4


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
                    await ready(one)
                await chancy.cancel(*random.sample(ids, 100 // KILLS))
                await eventually(partial(goes_on, book, book.stat().st_size))
                await asyncio.sleep(random.uniform(0.0, 0.3))
        ids += await pushing
        with worker(dsn, redis_url, log):
            await eventually(lambda: emptied(chancy), timeout=60.0)
            await eventually(lambda: archived(chancy, len(ids)), timeout=30.0)
        ends = await check(chancy, ids, book)
    assert len(ids) == PLAIN + WITHIN
    assert ends[State.CANCELLED] <= 100


def goes_on(book: Path, before: int) -> bool:
    return book.stat().st_size > before or len(entries(book)) >= PLAIN + WITHIN - 100

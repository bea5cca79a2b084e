"""What is held up for long does not hold up the others, and is not forgotten."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial

import psycopg
import pytest
from psycopg.types.json import Jsonb

from chancy import Chancy, Queue, Worker, job
from tests.faults import book as books
from tests.faults import jobs, oracles, tables
from tests.faults.book import Book
from tests.support.waiting import eventually

#: What a busy machine may add, in seconds.
SLACK_S = 0.7


@asynccontextmanager
async def worker_of(app: Chancy) -> AsyncGenerator[Worker]:
    async with (
        app,
        Worker(app, queues=["load"], heartbeat_s=0.4, heartbeat_timeout_s=2.0) as worker,
    ):
        yield worker


def application(dsn: str, *, pool_size: int = 10) -> Chancy:
    queue = Queue(name="load", executor="async")
    return Chancy(dsn, queues=[queue], no_default_plugins=True, pool_size=pool_size)


async def flow(app: Chancy, book: Book, stopping: asyncio.Event) -> int:
    """Push a few jobs all the time; returns how many."""
    pushed = 0
    while not stopping.is_set():
        await app.push_many(
            jobs.work.job(book=str(book), number=number) for number in range(pushed, pushed + 5)
        )
        pushed += 5
        await asyncio.sleep(0.01)
    return pushed


async def started_s(book: Book, number: int, since_ns: int) -> float:
    """Wait until a job has begun; returns the seconds from a moment to that."""
    await eventually(lambda: book.count("begin")[number])
    (begin,) = (one for one in book.entries() if (one.number, one.phase) == (number, "begin"))
    return (begin.at_ns - since_ns) / 1e9


async def check_late_commits(dsn: str, book: Book, held_s: float) -> None:
    """Pushes take their positions early and are committed late, while others pass them."""
    app, stopping = application(dsn), asyncio.Event()
    late = [1_000_000 + number for number in range(3)]
    async with worker_of(app), AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(await psycopg.AsyncConnection.connect(dsn))
            for _ in late
        ]
        flowing = asyncio.create_task(flow(app, book, stopping))
        await eventually(lambda: book.size > 0)
        for session, number in zip(sessions, late, strict=True):
            # Inserted by hand, without a notification.
            await session.execute(
                "insert into chancy.jobs (id, pos, state, queue, func, arguments) values"
                " (gen_random_uuid(), nextval('chancy.positions'), 0, 'load', %s, %s)",
                [jobs.work.job.template.func, Jsonb({"book": str(book), "number": number})],
            )
        found = await sessions[-1].execute("select last_value from chancy.positions")
        position = (await found.fetchall())[0][0]
        held_until = time.monotonic() + held_s
        await eventually(lambda: time.monotonic() > held_until, timeout=held_s + 1.0)
        await eventually(lambda: tables.passed(dsn, position) > 50)
        took_s: list[float] = []
        for session, number in zip(sessions, late, strict=True):
            assert book.count("begin")[number] == 0
            committed = time.monotonic_ns()
            await session.commit()
            took_s.append(await started_s(book, number, committed))
        # A busy machine may hold one of them up for longer.
        assert sorted(took_s)[1] < 1.0 + SLACK_S
        stopping.set()
        pushed = await flowing
        await eventually(lambda: tables.live(dsn) == 0)
    oracles.check_ran_once(book, [*range(pushed), *late])


async def test_a_job_that_is_committed_late_is_found_behind_the_hint(dsn: str, book: Book) -> None:
    await check_late_commits(dsn, book, 1.5)


@pytest.mark.chaos
async def test_a_job_that_is_committed_after_twenty_seconds(dsn: str, book: Book) -> None:
    await check_late_commits(dsn, book, 20.0)


#: The application whose sessions the jobs below take, and what lets them end.
_greedy: list[tuple[Chancy, asyncio.Event]] = []


@job(queue="load")
async def hog(book: str, number: int) -> None:
    """Holds a session of the worker's own pool until the test lets it end."""
    chancy, released = _greedy[0]
    async with chancy.transaction():
        books.write(book, number, "begin")
        await released.wait()
    books.write(book, number, "end")


async def test_jobs_that_take_the_whole_pool_hold_up_only_themselves(dsn: str, book: Book) -> None:
    app, released = application(dsn, pool_size=2), asyncio.Event()
    _greedy[:] = [(app, released)]
    # Two have the pool, and four wait for it.
    hogs = [hog.job(book=str(book), number=-number) for number in range(1, 7)]
    count = 12
    async with Chancy(dsn) as other, worker_of(app) as worker:
        worker_id = worker.worker_id
        await other.push_many(hogs)
        await eventually(lambda: len(book.count("begin")) == 2)
        for number in range(count):
            reference = await other.push(jobs.work.job(book=str(book), number=number))
            # If its settlement waited for the pool, it would not end.
            await reference.wait(timeout_s=30.0)
        for _ in range(2):
            await eventually(partial(has_beaten, other, await last_beat(other)))
        assert book.count("end") == dict.fromkeys(range(count), 1), "the pool was not empty"
        released.set()
        await eventually(lambda: tables.live(dsn) == 0)
        assert worker.worker_id == worker_id, "it was declared dead"
    oracles.check_ran_once(book, [*range(count), *range(-6, 0)])
    oracles.check_all_succeeded(dsn, count + 6)


async def last_beat(chancy: Chancy) -> datetime | None:
    (worker,) = await chancy.get_workers()
    return worker.beat_at


async def has_beaten(chancy: Chancy, since: datetime | None) -> bool:
    return await last_beat(chancy) != since

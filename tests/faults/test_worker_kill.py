"""`kill -9` of workers in the middle of their work."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

import psutil

from chancy import Chancy
from tests.faults import jobs, ledger, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.worker_process import WorkerProcess
from tests.support.sql import ask
from tests.support.waiting import eventually


@dataclass(slots=True)
class Toll:
    """What the dead left behind."""

    held: int = 0
    #: How many of them another dead worker had held: they crash again only if they had started.
    again: int = 0
    settled: set[int] = field(default_factory=set[int])
    #: The size of the book at the last death.
    offset: int = 0
    children: list[psutil.Process] = field(default_factory=list[psutil.Process])


async def kill(dsn: str, worker: WorkerProcess, book: Book, toll: Toll) -> UUID:
    """Kill a worker and write down what it held; returns its id."""
    worker_id = worker.wait_until_ready()
    toll.children += worker.family()
    worker.kill()
    # The server may still carry out what it was sent last.
    await eventually(lambda: tables.sessions(dsn, worker.name) == 0)
    toll.held += tables.running(dsn, worker_id)
    toll.again += tables.running_again(dsn, worker_id)
    toll.settled = tables.settled_numbers(dsn)
    toll.offset = book.size
    return worker_id


async def test_killed_workers_lose_no_job(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker
) -> None:
    ledger.open_ledger(dsn)
    count = 4_000
    # Longer than a busy machine holds up the heartbeats of one that lives.
    workers = first, second, third = [
        start_worker(dsn, executor="process", heartbeat_timeout_s=5.0) for _ in range(3)
    ]
    for worker in workers:
        await asyncio.to_thread(worker.wait_until_ready)
    await chancy.push_many(jobs.toil.job(book=str(book), number=number) for number in range(count))
    toll = Toll()
    await eventually(lambda: tables.finished(dsn) > count * 0.2, timeout=60.0)
    await kill(dsn, first, book, toll)
    await eventually(lambda: tables.finished(dsn) > count * 0.4, timeout=60.0)
    dead = await kill(dsn, second, book, toll)
    assert toll.held > 0, "nothing was running when the workers were killed"
    assert len(toll.settled) < count, "everything was done when the workers were killed"
    ask(dsn, "delete from chancy.workers where id = %s", [dead])  # as its supervisor does
    await eventually(lambda: tables.live(dsn) == 0, timeout=60.0)
    report = third.stop()
    oracles.check_all_succeeded(dsn, count)
    oracles.check_not_run_again(book, toll.settled, toll.offset)
    oracles.check_bounds(dsn)
    oracles.check_claimed_before_each_run(dsn, book)
    assert set(book.count("end")) == set(range(count))
    # A death is no attempt; each claim that the dead held was counted as one crash.
    attempts, crashes, errors = tables.counters(dsn)
    assert attempts == count
    assert toll.held - toll.again <= crashes == errors <= toll.held
    assert report.outcomes["Lost"] == crashes
    assert report.stale == 0
    assert not any(child.is_running() for child in toll.children), "children outlived it"

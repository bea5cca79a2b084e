"""The server crashes under load and comes back; nobody restarts anything else."""

from __future__ import annotations

import asyncio
import time

import pytest

from chancy import Chancy
from chancy.embedded import PostgresServer
from tests.faults import jobs, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.support.postgres_fixtures import OwnServer
from tests.support.sql import ask
from tests.support.waiting import eventually

CRASHES = 3
#: Longer than the server is away, so that nobody is declared dead: then nothing may run twice.
HEARTBEAT_TIMEOUT_S = 10.0


class Producer:
    """Pushes one job after the other, and counts those whose push returned."""

    def __init__(self, chancy: Chancy, book: Book) -> None:
        self._chancy = chancy
        self._book = book
        self.pushed = 0
        self.stopping = False
        #: The longest that a push has taken.
        self.longest_s = 0.0

    async def work(self) -> None:
        while not self.stopping:
            began = time.monotonic()
            await self._chancy.push_many(
                jobs.work.job(book=str(self._book), number=number, seconds=0.01)
                for number in range(self.pushed, self.pushed + 20)
            )
            self.pushed += 20
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            await asyncio.sleep(0.01)


async def crash(server: PostgresServer, producer: Producer) -> None:
    """Crash the server as soon as work flows again, and start it."""
    goal = tables.finished(server.dsn()) + 300
    await eventually(lambda: tables.finished(server.dsn()) > goal)
    await asyncio.to_thread(server.restart, "immediate")
    before = producer.pushed
    await eventually(lambda: producer.pushed > before)


@pytest.mark.chaos
async def test_three_crashes_of_the_server_lose_and_repeat_nothing(
    own_server: OwnServer, book: Book, start_worker: StartWorker
) -> None:
    server = own_server()
    dsn = server.dsn()
    workers = [start_worker(dsn, heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S) for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    async with Chancy(dsn) as chancy:
        producer = Producer(chancy, book)
        producing = asyncio.create_task(producer.work())
        for _ in range(CRASHES):
            await crash(server, producer)
        producer.stopping = True
        await producing
        await eventually(lambda: tables.live(dsn) == 0)
    assert server.log.read_text().count("database system was interrupted") == CRASHES
    reports = [worker.stop() for worker in workers]
    assert sum(report.sessions - 1 for report in reports) >= CRASHES, "the crashes went unseen"
    assert sum(report.stale for report in reports) == 0
    oracles.check_all_succeeded(dsn, producer.pushed)
    oracles.check_ran_once(book, range(producer.pushed))
    assert tables.counters(dsn) == (producer.pushed, 0, 0)


@pytest.mark.chaos
async def test_jobs_that_run_through_a_crash_of_the_server_are_settled_afterwards(
    own_server: OwnServer, book: Book, start_worker: StartWorker
) -> None:
    server = own_server()
    dsn = server.dsn()
    worker = start_worker(dsn, executor="process", heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S)
    worker.wait_until_ready()
    async with Chancy(dsn) as chancy:
        await chancy.push_many(
            jobs.toil.job(book=str(book), number=number, seconds=0.6) for number in range(4)
        )
        await eventually(lambda: len(book.count("begin")) >= 2)
        server.stop("immediate")
        await eventually(lambda: len(book.count("end")) >= 2)
        server.start()
        await eventually(lambda: tables.live(dsn) == 0)
    report = worker.stop()
    assert "settling_postponed" in worker.said()
    assert report.stale == 0
    oracles.check_all_succeeded(dsn, 4)
    oracles.check_ran_once(book, range(4))


@pytest.mark.chaos
async def test_every_session_is_replaced_after_each_was_terminated(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker
) -> None:
    """As an administrator, a failover or a proxy does: one session at a time, all the time."""
    worker = start_worker(dsn, heartbeat_timeout_s=HEARTBEAT_TIMEOUT_S)
    worker.wait_until_ready()
    producer = Producer(chancy, book)
    producing = asyncio.create_task(producer.work())
    of_worker: set[int] = set()
    began = time.monotonic()
    while len(of_worker) < 30:
        rows = ask(
            dsn,
            "select pid, own, pg_terminate_backend(pid) from ("
            " select pid, application_name = %s as own from pg_stat_activity"
            " where datname = current_database() and application_name in (%s, 'chancy')"
            " order by random() limit 2) as s",
            [worker.name, worker.name],
        )
        of_worker |= {pid for pid, own, _ in rows if own}
        assert time.monotonic() < began + 60, of_worker
        await asyncio.sleep(0.05)
    producer.stopping = True
    await producing
    await eventually(lambda: tables.live(dsn) == 0)
    report = worker.stop()
    assert report.sessions > 1, "for claims alone"
    assert report.stale == 0
    oracles.check_all_succeeded(dsn, producer.pushed)
    oracles.check_ran_once(book, range(producer.pushed))

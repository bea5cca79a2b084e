"""SIGTERM: what runs is finished or given back, and costs no attempt."""

from __future__ import annotations

import asyncio
import functools
import signal
import time

import psycopg
import pytest

from chancy import Chancy, State
from tests.faults import jobs, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.worker_process import Report, WorkerProcess
from tests.support.locks import BLOCKED
from tests.support.proxy import Proxy
from tests.support.sql import ask
from tests.support.waiting import eventually, eventually_sync

#: What the end of a worker may take on a busy machine beside the time that its jobs get.
EXIT_S = 20.0
#: Longer than a busy machine holds up the heartbeats of a worker, whose jobs would be rescued.
PATIENT = {"heartbeat_timeout_s": 30.0}


def push(chancy: Chancy, book: Book, executor: str, count: int, seconds: float) -> None:
    """Push jobs that take so long."""
    factory = (jobs.work if executor == "async" else jobs.toil).job
    chancy.sync_push_many(
        factory(book=str(book), number=number, seconds=seconds) for number in range(count)
    )


def check_untouched(dsn: str, count: int) -> None:
    """So many jobs wait as if nobody had ever claimed them."""
    assert tables.states(dsn) == {State.PENDING: count}
    assert ask(dsn, "select max(attempt), max(crashes) from chancy.jobs") == [(0, 0)]
    assert tables.workers(dsn) == 0


def signalled(worker: WorkerProcess, times: int = 1) -> None:
    """Send SIGTERM and wait until the worker has heard it."""
    worker.signal(signal.SIGTERM)
    eventually_sync(lambda: f"signal_received signal=SIGTERM count={times}" in worker.said())


def test_sigterm_gives_long_jobs_back(dsn: str, book: Book, start_worker: StartWorker) -> None:
    with Chancy(dsn) as chancy:
        worker = start_worker(
            dsn, executor="process", concurrency=3, shutdown_timeout_s=0.5, **PATIENT
        )
        worker.wait_until_ready()
        push(chancy, book, "process", 5, 60.0)
    eventually_sync(lambda: len(book.count("begin")) == 3)
    began = time.monotonic()
    report = worker.stop(timeout_s=0.5 + EXIT_S)
    assert time.monotonic() - began >= 0.5, "running jobs were not given their time"
    check_untouched(dsn, 5)
    assert report.outcomes["Released"] >= 3
    assert book.count("end") == {}


def waiting_for_lock(dsn: str, worker: WorkerProcess, function: str) -> bool:
    """Whether a session of the worker waits for a lock in a call of this function."""
    rows = ask(
        dsn,
        f"select 1 from pg_stat_activity where {BLOCKED}"
        " and application_name = %s and query like %s",
        [worker.name, f"%.{function}(%"],
    )
    return len(rows) > 0


def test_sigterm_during_a_claim_releases_its_jobs(
    dsn: str, book: Book, start_worker: StartWorker
) -> None:
    worker = start_worker(dsn, concurrency=8, shutdown_timeout_s=0.3, **PATIENT)
    # Unless it listens, it looks for jobs with a survey, which would wait for the lock instead.
    eventually_sync(lambda: "listening topic=work" in worker.said())
    with Chancy(dsn) as chancy, psycopg.connect(dsn) as session:
        session.execute("lock table chancy.jobs in access exclusive mode")
        chancy.sync_push_many(
            (jobs.work.job(book=str(book), number=n, seconds=60.0) for n in range(8)),
            within=session,
        )
        # Calls the worker to its queue. The notification of the push comes with the commit.
        ask(dsn, "select pg_notify(chancy.channel(), 'w:load')")
        eventually_sync(lambda: waiting_for_lock(dsn, worker, "claim"))
        signalled(worker)
        assert waiting_for_lock(dsn, worker, "claim")
        session.commit()
    report = worker.report(timeout_s=EXIT_S)
    assert report.outcomes["Released"] == 8, "the claim got nothing"
    check_untouched(dsn, 8)


@pytest.mark.chaos
def test_sigterm_during_a_settlement_waits_for_it(
    dsn: str, book: Book, start_worker: StartWorker
) -> None:
    with Chancy(dsn) as chancy:
        worker = start_worker(dsn, concurrency=4, shutdown_timeout_s=1.0)
        worker.wait_until_ready()
        push(chancy, book, "async", 4, 0.5)
    eventually_sync(lambda: len(book.count("begin")) == 4)
    with psycopg.connect(dsn) as session:
        session.execute("select from chancy.jobs for update")
        eventually_sync(lambda: waiting_for_lock(dsn, worker, "finish"))
        signalled(worker)
        assert waiting_for_lock(dsn, worker, "finish")
        assert worker.running
        session.commit()
    worker.report(timeout_s=EXIT_S)
    oracles.check_all_succeeded(dsn, 4)
    oracles.check_ran_once(book, range(4))
    assert tables.counters(dsn) == (4, 0, 0)


@pytest.mark.chaos
def test_sigterm_ends_the_worker_while_the_server_does_not_respond(
    dsn: str, proxy: Proxy, book: Book, start_worker: StartWorker
) -> None:
    with Chancy(dsn) as chancy:
        worker = start_worker(proxy.dsn(dsn), concurrency=2, shutdown_timeout_s=0.5)
        worker.wait_until_ready()
        push(chancy, book, "async", 2, 1.0)
    eventually_sync(lambda: len(book.count("begin")) == 2)
    proxy.black_hole()
    # The last settlements get 15 s, leaving the table and the last heartbeat 5 s each.
    assert worker.stop(timeout_s=0.5 + 25.0 + EXIT_S).settled == 0
    assert "settlements_abandoned count=2" in worker.said()
    proxy.heal()
    rescuer = start_worker(dsn)
    eventually_sync(lambda: tables.live(dsn) == 0, timeout=60.0)
    assert rescuer.stop().outcomes["Lost"] == 2
    oracles.check_all_succeeded(dsn, 2)
    assert tables.counters(dsn) == (2, 2, 2)


class Load:
    """Keeps a thousand jobs waiting until it is told to stop."""

    def __init__(self, chancy: Chancy, dsn: str, book: Book, executor: str) -> None:
        self._chancy = chancy
        self._dsn = dsn
        self._book = book
        self._factory = (jobs.work if executor == "async" else jobs.toil).job
        # Slower than they are pushed, so that every worker has claimed some ahead.
        self._seconds = {"async": 0.2, "thread": 0.01, "process": 0.005}[executor]
        self.pushed = 0
        self.stopping = False

    async def keep(self) -> None:
        while not self.stopping:
            if tables.live(self._dsn) < 1_000:
                await self._chancy.push_many(
                    self._factory(book=str(self._book), number=number, seconds=self._seconds)
                    for number in range(self.pushed, self.pushed + 500)
                )
                self.pushed += 500
            await asyncio.sleep(0.02)


@pytest.mark.chaos
@pytest.mark.parametrize("executor", ["async", "process"])
async def test_a_rolling_deploy_runs_every_job_once(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker, executor: str
) -> None:
    load = Load(chancy, dsn, book, executor)
    loading = asyncio.create_task(load.keep())
    old = [start_worker(dsn, executor=executor) for _ in range(2)]
    new: list[WorkerProcess] = []
    reports: list[Report] = []
    for worker in old:
        new.append(start_worker(dsn, executor=executor))
        await asyncio.to_thread(new[-1].wait_until_ready)
        holds = functools.partial(tables.running, dsn, worker.wait_until_ready())
        await eventually(holds)
        worker.signal(signal.SIGTERM)
        reports.append(await asyncio.to_thread(worker.report, 10.0 + EXIT_S))
    load.stopping = True
    await loading
    await eventually(lambda: tables.live(dsn) == 0, timeout=30.0)
    assert all(report.settled > 0 for report in reports), "the old workers did nothing"
    reports += [worker.stop() for worker in new]
    assert sum(report.stale for report in reports) == 0
    assert sum(report.outcomes["Lost"] for report in reports) == 0
    oracles.check_all_succeeded(dsn, load.pushed)
    oracles.check_ran_once(book, range(load.pushed))
    assert tables.counters(dsn) == (load.pushed, 0, 0)

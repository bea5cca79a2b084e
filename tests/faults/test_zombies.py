"""Workers that are frozen for longer than they may be silent, and go on when others have run what
they held."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from chancy import Chancy
from tests.faults import jobs, ledger, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.ledger import Sampler
from tests.support.sql import ask
from tests.support.waiting import eventually

TIMEOUT_S = 2.0
HELD = 4
JOBS = 600


def crashed_once(dsn: str) -> int:
    ((count,),) = ask(dsn, "select count(*) from chancy.finished_jobs where crashes = 1")
    return int(count)


@pytest.mark.chaos
async def test_a_frozen_worker_settles_nothing_of_what_others_run(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Stopped for three times the timeout, every slot taken. When it goes on its jobs run
    elsewhere: without the lease in the fence it would end them."""
    ledger.open_ledger(dsn)
    zombie = start_worker(dsn, concurrency=HELD, heartbeat_timeout_s=TIMEOUT_S)
    zombie_id, until = await asyncio.to_thread(zombie.wait_until_ready), tmp_path / "spoken"
    frozen = tmp_path / "frozen"
    await chancy.push_many(
        jobs.outlast.job(str(book), number, str(frozen), str(until)) for number in range(HELD)
    )
    await eventually(lambda: len(book.count("begin")) == HELD)
    with Sampler(dsn) as sampler:
        zombie.signal(signal.SIGSTOP)
        frozen_at = time.monotonic()
        await eventually(lambda: zombie.stopped)
        frozen.touch()
        # The server may still carry out what it was sent last.
        await eventually(lambda: tables.busy_sessions(dsn, zombie.name) == 0)
        assert tables.running(dsn, zombie_id) == HELD
        await chancy.push_many(
            jobs.work.job(str(book), number, 0.02) for number in range(HELD, JOBS)
        )
        takers = [start_worker(dsn) for _ in range(2)]
        await eventually(
            lambda: (
                tables.live(dsn) == tables.running_elsewhere(dsn, zombie_id) == HELD
                and time.monotonic() > frozen_at + 3 * TIMEOUT_S
            ),
            timeout=40.0,
        )
        zombie.signal(signal.SIGCONT)
        await eventually(lambda: "settlements_stale" in zombie.said())
        until.touch()
        await eventually(lambda: tables.live(dsn) == 0, timeout=60.0)
    sampler.check(at_least=20)
    lost = sum(worker.stop().outcomes["Lost"] for worker in takers)
    # It has another id, and works.
    again = range(JOBS, JOBS + 100)
    await chancy.push_many(jobs.work.job(str(book), number) for number in again)
    await eventually(lambda: tables.live(dsn) == 0)
    report = zombie.stop()
    # Both takers may judge one that neither has settled yet; it counts once.
    assert report.stale == crashed_once(dsn) == HELD <= lost
    assert zombie.said().count("worker_declared_dead") == 1
    count = JOBS + len(again)
    oracles.check_all_succeeded(dsn, count)
    ledger.check(dsn)
    # Jobs that were claimed ahead of the HELD ones, which take all slots, are released.
    assert ledger.repeated(dsn) >= HELD
    assert tables.counters(dsn) == (count, HELD, HELD)
    oracles.check_claimed_before_each_run(dsn, book)
    # Its jobs did not run elsewhere before it was overdue.
    beat_at = min(one.beat_at for one in ledger.silenced(dsn) if one.pid == zombie.pid)
    assert oracles.find_overlaps(book, {zombie.pid: beat_at + TIMEOUT_S}) == []

"""Workers that are frozen for longer than they may be silent, and go on when others have run what
they held."""

from __future__ import annotations

import asyncio
import random
import signal

from chancy import Chancy
from tests.faults import jobs, ledger, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.fleet import Fleet
from tests.faults.ledger import Sampler
from tests.waiting import eventually

TIMEOUT_S = 2.0
HELD = 16
JOBS = 1_500


async def test_a_frozen_worker_settles_nothing_of_what_others_have_taken(
    chancy: Chancy, dsn: str, book: Book, start_worker: StartWorker
) -> None:
    """SIGSTOP for three times the timeout of the heartbeat, with every slot taken; the jobs that
    it holds have been run by others before it goes on."""
    ledger.open_ledger(dsn)
    fleet = Fleet(
        dsn,
        start_worker,
        size=3,
        chance=random.Random(2),
        concurrency=HELD,
        heartbeat_timeout_s=TIMEOUT_S,
    )
    fleet.wait_until_ready()
    zombie = fleet.alive[0]
    zombie_id = zombie.wait_until_ready()
    await chancy.push_many(jobs.work.job(str(book), number, 0.05) for number in range(JOBS))
    with Sampler(dsn) as sampler:
        await eventually(lambda: tables.running(dsn, zombie_id) >= HELD)
        frozen = asyncio.create_task(fleet.freeze(zombie, 3 * TIMEOUT_S))
        await eventually(lambda: zombie.stopped)
        # The server may still carry out what it was sent last.
        await eventually(lambda: tables.busy_sessions(dsn, zombie.name) == 0)
        held = tables.held(dsn, zombie_id)
        await eventually(lambda: tables.live(dsn) == 0, timeout=3 * TIMEOUT_S)
        assert not frozen.done(), "the jobs were not run by others before it went on"
        await frozen
    sampler.check(at_least=5)
    assert len(held) >= HELD
    # It goes on under another id, and works.
    again = range(JOBS, JOBS + 200)
    for worker in fleet.alive[1:]:
        worker.signal(signal.SIGTERM)
    assert sum(worker.report().outcomes["Lost"] for worker in fleet.alive[1:]) == len(held)
    await chancy.push_many(jobs.work.job(str(book), number) for number in again)
    await eventually(lambda: tables.live(dsn) == 0)
    assert tables.workers(dsn) == 1
    report = zombie.stop()
    assert report.stale == len(held)
    assert zombie.said().count("worker_declared_dead") == 1
    oracles.check_all_succeeded(dsn, JOBS + len(again))
    ledger.check(dsn)
    # Whoever took them after it holds them for good; what it did besides is counted once.
    assert ledger.repeated(dsn) == len(held)
    assert tables.counters(dsn) == (JOBS + len(again), len(held), len(held))
    others = {entry.number for entry in book.entries() if entry.pid != zombie.pid}
    assert set(held) <= others
    assert oracles.find_overlaps(book, {}, fleet.frozen) == []

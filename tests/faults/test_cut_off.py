"""One worker does not reach the server any more; the others do."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from chancy import Chancy
from tests.faults import fleet as fleets
from tests.faults import jobs, ledger, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.support.postgres_fixtures import OwnServer
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

TIMEOUT_S = 2.0
HELD = 8
MORE = 50


@pytest.mark.chaos
@pytest.mark.parametrize("executor", ["async", "process"])
async def test_a_worker_that_is_cut_off_stops_its_jobs_before_others_run_them(
    chancy: Chancy, dsn: str, proxy: Proxy, book: Book, start_worker: StartWorker, executor: str
) -> None:
    """Nothing gets through, both ways, for twice the timeout and until all its jobs were run by
    another worker."""
    ledger.open_ledger(dsn)
    cut = start_worker(
        proxy.dsn(dsn), executor=executor, concurrency=HELD, heartbeat_timeout_s=TIMEOUT_S
    )
    cut_id = await asyncio.to_thread(cut.wait_until_ready)
    pids = {cut.pid, *(child.pid for child in cut.family())}
    await chancy.push_many(jobs.hold.job(str(book), number) for number in range(HELD))
    await eventually(lambda: len(book.count("begin")) == HELD)
    pids |= {entry.pid for entry in book.entries()}
    other = start_worker(dsn, executor=executor, heartbeat_timeout_s=TIMEOUT_S)
    await asyncio.to_thread(other.wait_until_ready)
    proxy.black_hole()
    began = time.monotonic()
    offset = book.size
    await chancy.push_many(jobs.work.job(str(book), HELD + number) for number in range(MORE))
    await eventually(lambda: tables.live(dsn) == 0)
    await eventually(lambda: time.monotonic() > began + 2 * TIMEOUT_S)
    during = book.entries(offset)
    proxy.heal()
    # While it was cut off it began nothing, and ended what it had.
    assert [one for one in during if one.phase == "begin" and one.pid in pids] == []
    ended = [one for one in during if one.phase == "end" and one.pid in pids]
    assert sorted(one.number for one in ended) == list(range(HELD))
    assert oracles.find_overlaps(book) == []
    stopped_s = max(one.at_ns for one in ended) / 1e9 - began
    taken_s = min(one.at_ns for one in during if one.phase == "begin" and one.number < HELD) / 1e9
    fleets.tell(stopped_after_s=stopped_s, begun_elsewhere_after_s=taken_s - began)
    # It goes on under another name.
    await eventually(lambda: "worker_declared_dead" in cut.said())
    other.signal(signal.SIGTERM)
    rescued = other.report().outcomes["Lost"]
    again = range(HELD + MORE, HELD + MORE + 20)
    await chancy.push_many(jobs.work.job(str(book), number) for number in again)
    await eventually(lambda: tables.live(dsn) == 0)
    assert tables.running(dsn, cut_id) == 0
    report = cut.stop()
    assert cut.said().count("worker_cut_off") == 1
    assert (report.stale, rescued) == (HELD, HELD)
    oracles.check_all_succeeded(dsn, HELD + MORE + len(again))
    ledger.check(dsn)
    assert ledger.repeated(dsn) == HELD


@pytest.mark.chaos
async def test_a_server_that_is_unavailable_for_longer_than_the_timeout_stops_no_job(
    own_server: OwnServer, book: Book, start_worker: StartWorker
) -> None:
    """It refuses connections, so that nobody else is served either: work in hand is not thrown
    away."""
    server = own_server()
    dsn = server.dsn()
    worker = start_worker(dsn, heartbeat_timeout_s=TIMEOUT_S)
    await asyncio.to_thread(worker.wait_until_ready)
    seconds = 2.5 * TIMEOUT_S
    async with Chancy(dsn) as chancy:
        await chancy.push_many(jobs.work.job(str(book), number, seconds) for number in range(HELD))
        await eventually(lambda: len(book.count("begin")) == HELD)
        await asyncio.to_thread(server.stop, "immediate")
        await eventually(lambda: len(book.count("end")) == HELD)
        await asyncio.to_thread(server.start)
        await eventually(lambda: tables.live(dsn) == 0)
    report = worker.stop()
    assert "heartbeat_failed" in worker.said()
    assert "worker_cut_off" not in worker.said()
    assert report.stale == 0
    oracles.check_all_succeeded(dsn, HELD)
    oracles.check_ran_once(book, range(HELD))

"""The accounts that the other tests trust: what they say of runs, and whom they excuse."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from chancy import Chancy, Queue
from chancy.worker.worker import Worker
from tests.faults import book as books
from tests.faults import jobs, ledger, oracles, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.fleet import Fleet
from tests.faults.worker_process import ROOT
from tests.support.sql import ask
from tests.support.waiting import eventually

_HOLD = "import sys; from tests.faults import book\nwith book.run(sys.argv[1], 7): input()"


@contextmanager
def run_elsewhere(book: Book) -> Generator[subprocess.Popen[bytes]]:
    """A run of job 7 in another process, which has begun and goes on."""
    command = [sys.executable, "-c", _HOLD, str(book)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as process:
        try:
            while book.lines() == 0:
                assert process.poll() is None
            yield process
        finally:
            process.kill()


def test_a_run_that_begins_beside_another_one_is_an_overlap(book: Book) -> None:
    with run_elsewhere(book) as process:
        second_at = time.time()
        with books.run(str(book), 7):
            pass
        with books.run(str(book), 8):
            pass
        ((pid, _, second),) = oracles.find_overlaps(book)
        assert (pid, second.number, second.phase) == (process.pid, 7, "begin")
        assert oracles.find_overlaps(book, {process.pid: second_at}) == []
        assert len(oracles.find_overlaps(book, {process.pid: time.time()})) == 1, "not yet overdue"


def test_nothing_is_an_overlap_with_what_was_killed(book: Book) -> None:
    """It has no end, and nobody has noted when it died."""
    with run_elsewhere(book) as process:
        process.kill()
        process.wait()
        with books.run(str(book), 7):
            pass
    assert book.count("begin")[7] == 2
    assert oracles.find_overlaps(book) == []


def test_nothing_is_an_overlap_with_what_was_stopped(book: Book) -> None:
    """It has no end either, and its process lives."""
    with pytest.raises(KeyError), books.run(str(book), 7):
        raise KeyError
    with books.run(str(book), 7), books.run(str(book), 7):
        pass
    assert book.count("end")[7] == 2
    assert len(oracles.find_overlaps(book)) == 1, "the one that was inside of another one"


def test_the_runs_of_a_child_are_excused_with_its_parent(book: Book) -> None:
    with run_elsewhere(book) as process, books.run(str(book), 7):
        ((pid, parent, _),) = oracles.find_overlaps(book)
        assert pid == process.pid
        assert oracles.find_overlaps(book, {parent: 0.0}) == []


async def test_a_run_or_a_crash_without_a_claim_of_its_own_is_found(dsn: str, book: Book) -> None:
    ledger.open_ledger(dsn)
    queues = [Queue(name="load", executor="async")]
    async with Chancy(dsn, queues=queues) as chancy, Worker(chancy, queues=["load"]):
        await chancy.push_many([jobs.work.job(str(book), 7), jobs.work.job(str(book), 8)])
        await eventually(lambda: tables.live(dsn) == 0, timeout=30.0)
    oracles.check_claimed_before_each_run(dsn, book)
    with books.run(str(book), 8):
        pass
    with pytest.raises(AssertionError, match=r"\{8: \(2, 1\)\}"):
        oracles.check_claimed_before_each_run(dsn, book)
    oracles.check_bounds(dsn)
    ask(dsn, "update chancy.finished_jobs set crashes = 1")
    with pytest.raises(AssertionError, match="claims"):
        oracles.check_bounds(dsn)


def test_only_a_worker_that_was_overdue_while_it_lived_is_excused(
    dsn: str, start_worker: StartWorker
) -> None:
    ledger.open_ledger(dsn)
    fleet = Fleet(dsn, start_worker, size=0, chance=random.Random(0), heartbeat_timeout_s=2.0)
    now = time.time()
    # Not beating for so many seconds when it was forgotten, and killed so long ago.
    for pid, heartbeat_age_s, killed_s in [
        (1, 3.0, None),
        (2, 3.0, 0.5),
        (3, 3.0, 2.5),
        (4, -60.0, None),  # just now, however long this takes
    ]:
        if killed_s is not None:
            fleet.killed_at[pid] = now - killed_s
        ask(
            dsn,
            "insert into chancy.workers (id, host, pid, beat_at)"
            " values (gen_random_uuid(), 'here', %s, to_timestamp(%s))",
            [pid, now - heartbeat_age_s],
        )
    ask(dsn, "delete from chancy.workers")
    found = fleet.taken_for_dead()
    assert found.keys() == {1, 2}
    assert found[1] == pytest.approx(now - 1.0, abs=0.01)
    with pytest.raises(AssertionError, match="of the living"):
        fleet.check_the_living()
    patient = Fleet(dsn, start_worker, size=0, chance=random.Random(0), heartbeat_timeout_s=60.0)
    with pytest.raises(AssertionError, match="does not wait"):
        patient.check_the_living()

"""One unique key under fifty producers, while its jobs finish, and while those who run them die."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from chancy import Chancy, State
from tests.faults import jobs, producer, tables
from tests.faults.book import Book
from tests.faults.conftest import StartWorker
from tests.faults.worker_process import ROOT, WorkerProcess
from tests.support.sql import ask
from tests.support.waiting import eventually_sync

logger = logging.getLogger("tests.faults")

PROCESSES = 5
KILLS = 2
_RUNNING = (
    "select w.pid from chancy.jobs as j join chancy.workers as w on w.id = j.worker_id"
    " where j.state = 1"
)


class Producers:
    """Processes of `tests.faults.producer`."""

    def __init__(self, dsn: str, book: Book, folder: Path) -> None:
        self._stop = folder / "stop"
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.faults.producer", dsn, str(book), folder, str(at)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for at in range(PROCESSES)
        ]

    def stop(self) -> list[dict[str, Any]]:
        """End them; returns what they were told."""
        self._stop.touch()
        return [json.loads(process.communicate(timeout=60)[0]) for process in self._processes]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


class Looks:
    """Counts live jobs all the time, each time in one snapshot."""

    def __init__(self, dsn: str) -> None:
        self.most = 0
        self.count = 0
        self._dsn = dsn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as session:
            while not self._stop.wait(0.005):
                self.most = max(self.most, tables.live(session))
                self.count += 1

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def producers(dsn: str, book: Book, tmp_path: Path) -> Iterator[Producers]:
    made = Producers(dsn, book, tmp_path)
    yield made
    made.close()


@pytest.fixture
def looks(dsn: str) -> Iterator[Looks]:
    made = Looks(dsn)
    yield made
    made.close()


def kill_who_runs_it(dsn: str, fleet: list[WorkerProcess]) -> WorkerProcess:
    """Kill the worker that runs the job of the key, while it does."""
    while True:
        for (pid,) in ask(dsn, _RUNNING):
            for worker in fleet:
                if worker.pid == pid:
                    worker.kill()
                    return worker


def check_one_after_the_other(book: Book) -> int:
    """No job ends but the one that has begun last. Returns how many have begun, and then died: what
    begins next is the same job, though a push may have changed its arguments while it waited."""
    running, deaths = None, 0
    for entry in book.entries():
        if entry.phase == "end":
            assert entry.number == running, "two jobs of the key ran at a time"
            running = None
        else:
            deaths += running is not None
            running = entry.number
    assert running is None
    return deaths


def wait_for_more(book: Book) -> None:
    """Wait until some more jobs have ended."""
    ended = book.count("end").total()
    eventually_sync(lambda: book.count("end").total() > ended + 5, timeout=30)


@pytest.mark.chaos
def test_one_key_of_fifty_producers_is_held_by_one_job_at_a_time(
    dsn: str, book: Book, start_worker: StartWorker, producers: Producers, looks: Looks
) -> None:
    def start() -> WorkerProcess:
        return start_worker(dsn, heartbeat_s=0.2)

    fleet = [start(), start()]
    for worker in fleet:
        worker.wait_until_ready()
    began = time.monotonic()
    for _ in range(KILLS):
        wait_for_more(book)
        fleet.remove(kill_who_runs_it(dsn, fleet))
        fleet.append(start())
    wait_for_more(book)
    told = producers.stop()
    took = time.monotonic() - began
    eventually_sync(lambda: tables.live(dsn) == 0)
    looks.close()

    assert [error for one in told for error in one["errors"]] == []
    assert looks.most == 1
    made = [id for one in told for id in one["made"]]
    assert len({*made}) == len(made), "two pushes were told that the job is theirs"
    assert {id for one in told for id in one["met"]} <= {*made}
    rows = ask(dsn, "select id::text, state, crashes from chancy.finished_jobs")
    assert sorted(id for id, _, _ in rows) == sorted(made)
    assert {State(state) for _, state, _ in rows} == {State.SUCCEEDED}
    # One that is killed may have settled its job a moment before, or have only ended it.
    died = sum(crashes for _, _, crashes in rows)
    assert 1 <= died <= KILLS
    assert check_one_after_the_other(book) <= died
    assert book.count("begin").total() <= len(made) + died, "a job ran again without a kill"
    pushes = sum(one["pushes"] for one in told)
    logger.info(
        "%d pushes of one key by %d producers in %.1f s made %d jobs; %d looks; %d workers killed",
        pushes, PROCESSES * producer.PRODUCERS, took, len(made), looks.count, KILLS,
    )  # fmt: skip

    # Nothing of it is left that would keep the key.
    with Chancy(dsn) as chancy:
        job = jobs.work.job(book=str(book), number=-1).with_unique(producer.RULES["raise"])
        assert chancy.sync_push(job).created
        eventually_sync(lambda: book.count("end")[-1] == 1)

"""The account that the other tests trust: what it says of runs beside each other."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tests.faults import book as books
from tests.faults import oracles
from tests.faults.book import Book
from tests.faults.worker_process import ROOT

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

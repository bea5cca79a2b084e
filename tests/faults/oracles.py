"""Invariants that must hold after every fault, checked in the tables and the book."""

from __future__ import annotations

from collections.abc import Collection

from chancy.attempt.judge import MAX_CRASHES
from chancy.states import State
from tests.faults import tables
from tests.faults.book import Book, Entry


def check_all_succeeded(dsn: str, count: int) -> None:
    """Check that no job is lost or duplicated: ``count`` jobs, each succeeded, each one row."""
    assert tables.states(dsn) == {State.SUCCEEDED: count}
    ((rows, ids),) = tables.ask(
        dsn, "select count(*), count(distinct id) from chancy.finished_jobs"
    )
    assert (rows, ids) == (count, count)


def check_ran_once(book: Book, numbers: Collection[int]) -> None:
    """Check that each of these jobs, and no other, started once and ended once."""
    expected = dict.fromkeys(numbers, 1)
    assert book.count("begin") == expected
    assert book.count("end") == expected


def check_not_run_again(book: Book, settled: Collection[int], offset: int) -> None:
    """Check that no settled job started after the book had this size."""
    again = set(book.count("begin", offset)) & set(settled)
    assert again == set()


def find_overlaps(book: Book, excused: Collection[int] = ()) -> list[tuple[int, int, Entry]]:
    """Runs of a job that were still going on when another run of it started.

    Returns the process and its parent of each, and the start of the other run.

    :param excused: workers that were declared dead while they lived. Their runs, and those of their
        children, may overlap with those of other workers.
    """
    return [
        (pid, parent, entry)
        for entry in book.entries()
        for pid, parent in entry.beside
        if pid not in excused and parent not in excused
    ]


def check_bounds(dsn: str) -> None:
    """Check that no job has more attempts or crashes than allowed."""
    beyond = tables.ask(
        dsn,
        "select id, attempt, max_attempts, crashes from chancy.finished_jobs"
        " where attempt > max_attempts or crashes > %s limit 10",
        [MAX_CRASHES],
    )
    assert beyond == []

"""What must hold after every fault, asked of the tables and of the book."""

from __future__ import annotations

from collections.abc import Collection

from chancy.attempt.judge import MAX_CRASHES
from chancy.states import State
from tests.faults import tables
from tests.faults.book import Book, Entry


def check_all_succeeded(dsn: str, count: int) -> None:
    """Nothing is lost and nothing is there twice: so many jobs, each succeeded, each one row."""
    assert tables.states(dsn) == {State.SUCCEEDED: count}
    ((rows, ids),) = tables.ask(
        dsn, "select count(*), count(distinct id) from chancy.finished_jobs"
    )
    assert (rows, ids) == (count, count)


def check_ran_once(book: Book, numbers: Collection[int]) -> None:
    """Each of these jobs began once and ended once, and no other did."""
    expected = dict.fromkeys(numbers, 1)
    assert book.count("begin") == expected
    assert book.count("end") == expected


def check_not_run_again(book: Book, settled: Collection[int], offset: int) -> None:
    """What was settled when the book had this size did not begin afterwards."""
    again = set(book.count("begin", offset)) & set(settled)
    assert again == set()


def find_overlaps(book: Book, excused: Collection[int] = ()) -> list[tuple[int, int, Entry]]:
    """Runs of a job that went on when another one of it began: the process and its parent, and the
    other's beginning.

    :param excused: workers whose runs, and those of their children, may go on while others have
        taken their jobs: who was taken for dead and was not.
    """
    return [
        (pid, parent, entry)
        for entry in book.entries()
        for pid, parent in entry.beside
        if pid not in excused and parent not in excused
    ]


def check_bounds(dsn: str) -> None:
    """Nobody has more attempts, or more crashes, than a job may have."""
    beyond = tables.ask(
        dsn,
        "select id, attempt, max_attempts, crashes from chancy.finished_jobs"
        " where attempt > max_attempts or crashes > %s limit 10",
        [MAX_CRASHES],
    )
    assert beyond == []

"""Invariants that must hold after every fault, checked in the tables and the book."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Mapping

from chancy.attempt.judge import MAX_CRASHES
from chancy.states import State
from tests.faults import tables
from tests.faults.book import Book, Entry
from tests.support.sql import ask


def check_all_succeeded(dsn: str, count: int) -> None:
    """Check that no job is lost or duplicated: ``count`` jobs, each succeeded, each one row."""
    assert tables.states(dsn) == {State.SUCCEEDED: count}
    ((rows, ids),) = ask(dsn, "select count(*), count(distinct id) from chancy.finished_jobs")
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


def find_unclaimed(dsn: str, *books: Book) -> dict[int, tuple[int, int]]:
    """Jobs that started more often than they were claimed, by the ledger; returns both numbers."""
    claims = dict(
        ask(
            dsn,
            "select (f.arguments ->> 'number')::int, count(c.id) from chancy.finished_jobs as f"
            " left join ledger.claims as c using (id) where f.arguments ? 'number' group by 1",
        )
    )
    begun = sum((book.count("begin") for book in books), Counter[int]())
    return {n: (times, claims.get(n, 0)) for n, times in begun.items() if times > claims.get(n, 0)}


def check_claimed_before_each_run(dsn: str, *books: Book) -> None:
    """Check that no finished job started more often than it was claimed, by the ledger.

    Unlike `find_overlaps` it excuses no worker: a run needs a claim of its own, whoever was
    presumed dead.
    """
    beyond = find_unclaimed(dsn, *books)
    assert beyond == {}, f"jobs by how often they started and were claimed: {beyond}"


def find_overlaps(
    book: Book, overdue: Mapping[int, float] | None = None
) -> list[tuple[int, int, Entry]]:
    """Runs of a job that were still going on when another run of it started.

    Returns the process and its parent of each, and the start of the other run.

    :param overdue: the time, in seconds since 1970, from which workers that lived may have been
        presumed dead. Their runs, and those of their children, may overlap with runs of other
        workers that started later.
    """
    overdue = overdue or {}
    since_1970 = time.time() - time.monotonic()

    def excused(process: int, other: Entry) -> bool:
        return overdue.get(process, math.inf) < other.at_ns / 1e9 + since_1970

    return [
        (pid, parent, entry)
        for entry in book.entries()
        for pid, parent in entry.beside
        if not excused(pid, entry) and not excused(parent, entry)
    ]


def check_bounds(dsn: str) -> None:
    """Check that no job has more attempts or crashes than allowed, or than claims that were one, by
    the ledger."""
    beyond = ask(
        dsn,
        "select id, attempt, max_attempts, crashes from chancy.finished_jobs as f"
        " where attempt > max_attempts or crashes > %s or attempt + crashes > ("
        "  select count(*) from ledger.claims as c where c.id = f.id)"
        " + (state = 5 and crashes >= %s)::int limit 10",
        [MAX_CRASHES, MAX_CRASHES],
    )
    assert beyond == [], f"more than allowed, or than claims: {beyond}"

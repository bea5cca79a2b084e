"""What must hold after every fault, asked of the tables and of the book."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping

from chancy.judge import MAX_CRASHES
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


#: Who waits for the end of a process looks each 40 ms at most; others may run its jobs by then.
_NOTED_LATE_NS = 50_000_000


def find_overlaps(
    book: Book, deaths: Mapping[int, int], excused: Collection[int] = ()
) -> list[tuple[Entry, Entry]]:
    """Runs of one job that began while another run of it went on, each with that other one.

    :param deaths: when each process that was killed was gone, in ns of the book's clock. A run
        without an end has ended with its process; one of a process that is not among these is
        passed over.
    :param excused: processes whose runs may go on while others have taken their jobs: frozen or
        cut off ones.
    """
    runs: dict[int, list[tuple[Entry, int]]] = defaultdict(list)
    begun: dict[tuple[int, int], Entry] = {}
    for entry in book.entries():
        key = entry.number, entry.pid
        if entry.phase == "begin":
            begun[key] = entry
        elif key in begun:
            runs[entry.number].append((begun.pop(key), entry.at_ns))
    for (number, pid), entry in begun.items():
        runs[number].append((entry, deaths.get(pid, entry.at_ns) - _NOTED_LATE_NS))
    found: list[tuple[Entry, Entry]] = []
    for those in runs.values():
        those.sort(key=lambda run: run[0].at_ns)
        for (before, until_ns), (after, _) in itertools.pairwise(those):
            if after.at_ns < until_ns and before.pid not in excused:
                found.append((before, after))
    return found


def check_bounds(dsn: str) -> None:
    """Nobody has more attempts, or more crashes, than a job may have."""
    beyond = tables.ask(
        dsn,
        "select id, attempt, max_attempts, crashes from chancy.finished_jobs"
        " where attempt > max_attempts or crashes > %s limit 10",
        [MAX_CRASHES],
    )
    assert beyond == []

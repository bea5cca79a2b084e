"""The jobs that are run: they count themselves, and do nothing else or use a little of a core."""

from __future__ import annotations

import time

from benchmarks.tally import Tally
from chancy import job

#: Processor time of a job that works.
BURN_NS = 1_000_000

_tally = Tally()


@job()
async def noop(number: int) -> None:
    """For the worker's event loop."""
    _tally.note(number)


@job()
def plain_noop(number: int) -> None:
    """For threads and processes."""
    _tally.note(number)


@job()
async def burn(number: int) -> None:
    """For the worker's event loop, which does nothing else meanwhile."""
    _tally.note(number)
    _count()


@job()
def plain_burn(number: int) -> None:
    """For threads and processes."""
    _tally.note(number)
    _count()


def _count() -> int:
    """Use a millisecond of processor time of this thread, however many threads there are."""
    counted, until = 0, time.thread_time_ns() + BURN_NS
    while time.thread_time_ns() < until:
        counted += 1
    return counted

"""The jobs that are run: they do nothing but count themselves."""

from __future__ import annotations

from benchmarks.tally import Tally
from chancy import job

_tally = Tally()


@job()
async def noop(number: int) -> None:
    """For the worker's event loop."""
    _tally.note(number)


@job()
def plain_noop(number: int) -> None:
    """For threads and processes."""
    _tally.note(number)

"""The jobs of the benchmarks: each counts its run, and some use a little CPU time."""

from __future__ import annotations

import asyncio
import time

from benchmarks.tally import Tally
from chancy import Retry, current_job, job

_tally = Tally()


@job()
async def noop(number: int) -> None:
    """A no-op for the async executor."""
    _tally.note(number)


@job()
async def echo(number: int) -> int:
    """Returns its argument."""
    _tally.note(number)
    return number


@job()
async def keyed(number: int, key_: int) -> None:
    """A no-op with a partition key."""
    _tally.note(number)


@job()
async def taking(number: int, text: str) -> None:
    """A no-op with large arguments."""
    _tally.note(number)


@job()
async def nap(number: int, ms: int) -> None:
    """Sleeps for some milliseconds."""
    _tally.note(number)
    await asyncio.sleep(ms / 1_000)


@job()
async def fails_once(number: int) -> None:
    """Fails in its first attempt, and is retried at once."""
    _tally.note(number)
    if current_job().attempt == 1:
        raise Retry(0)


@job()
def plain_noop(number: int) -> None:
    """A no-op for the thread and process executors."""
    _tally.note(number)


@job()
def plain_burn(number: int, ms: int) -> None:
    """Milliseconds of CPU time for the thread and process executors."""
    _tally.note(number)
    burn_ms(ms)


def burn_ms(ms: int) -> int:
    """Use milliseconds of CPU time of this thread."""
    counted, until = 0, time.thread_time_ns() + ms * 1_000_000
    while time.thread_time_ns() < until:
        counted += 1
    return counted

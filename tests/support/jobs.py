"""Functions that tests push. They record what they did in lists of this process or in files."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from chancy import current_job, job
from tests.support.waiting import eventually

if TYPE_CHECKING:
    import asyncio
else:
    from tests.support.late import asyncio

#: Arguments of `note` calls, in the order they ran.
noted: list[object] = []
started = threading.Event()
#: Lets `hold` end.
may_end = threading.Event()


@job(queue="async")
async def note(value: object) -> object:
    noted.append(value)
    return value


@job(queue="async")
async def stored_note(value: object) -> object:
    """`note`, in a checkpoint."""
    return await current_job().checkpoint("note", note, value)


@job(queue="async")
async def discard(value: str) -> None:
    """For large arguments."""


@job(queue="async")
async def wait_for_ever() -> None:
    started.set()
    await asyncio.Event().wait()


@job(queue="async", max_attempts=3)
async def fail(message: str = "no") -> None:
    raise ValueError(message)


@job(queue="async", max_attempts=3)
def fail_times(path: str, times: int) -> int:
    """Fails ``times`` times; the count is in a file."""
    file = Path(path)
    count = len(file.read_text()) if file.exists() else 0
    if count < times:
        file.write_text("x" * (count + 1))
        raise ValueError(f"failure {count + 1}")
    return count


@job
def pid_of_sync() -> list[int]:
    return [os.getpid(), threading.get_ident()]


@job
async def pid_of_async() -> list[int]:
    await asyncio.sleep(0)
    return [os.getpid(), threading.get_ident()]


@job(queue="async")
async def nap(seconds: float) -> None:
    noted.append(seconds)
    await asyncio.sleep(seconds)


@job(queue="async")
async def hold() -> None:
    """Runs until the test lets it end."""
    noted.append("held")
    await eventually(may_end.is_set, timeout=60.0)


def undecorated(value: int) -> int:
    return value + 1


class Holder:
    @staticmethod
    def method() -> None: ...


@job(max_attempts=1)
async def complete() -> None:
    """Completes itself in an object that is not a transaction."""
    await current_job().complete_in(object())

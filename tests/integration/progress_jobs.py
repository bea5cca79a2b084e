"""Functions of jobs that say how far they are. Children import them, too."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

from chancy import current_job, job

#: The variable that names a file; while there is one the initializer fails. Commands in the process
#: of a test hide those that begin with CHANCY_, also from children that start meanwhile.
OBSTACLE = "TEST_OBSTACLE"


@job
async def report_async(path: str) -> None:
    """Says two words, and waits between them for a file."""
    current_job().progress(0.4, "two of five")
    await asyncio.to_thread(_wait_for, path)
    current_job().progress(1.0, "done")


@job
def heed(path: str) -> None:
    """Reports until it is told to stop, and writes down why."""
    this = current_job()
    while not this.cancelled:
        this.progress(0.5)
        with contextlib.suppress(BaseException):  # in a child it is told by an exception
            time.sleep(0.05)
    Path(path).write_text(this.why_cancelled or "")


def _wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


def initialize() -> None:
    """Of children that can be kept from starting."""
    if Path(os.environ[OBSTACLE]).exists():
        raise RuntimeError("the obstacle is there")

"""Jobs that are asked to stop: some heed it and take their time, some do not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from chancy import current_job, job


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


@job(queue="process")
def wind_down(place: str) -> None:
    """Once it is asked to stop, or stopped, it ends when it may."""
    here = Path(place)
    try:
        (here / "started").touch()  # from here on it may be interrupted at any instruction
        while not current_job().cancelled:
            time.sleep(0.01)
    finally:
        (here / "asked").touch()
        _wait_for(here / "may end")
        (here / "ended").touch()


@job(queue="async")
async def wind_down_async(place: str) -> None:
    here = Path(place)
    (here / "started").touch()
    try:
        await asyncio.Event().wait()
    finally:
        (here / "asked").touch()
        await asyncio.to_thread(_wait_for, here / "may end")
        (here / "ended").touch()

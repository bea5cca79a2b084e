"""Jobs that are asked to stop: some heed it and take their time, some do not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from chancy import job


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


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

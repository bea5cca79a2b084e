"""Jobs that end in several ways."""

from __future__ import annotations

import asyncio
import time

from chancy import Snooze, current_job, job


@job(queue="counted", max_attempts=2)
async def work(ending: str) -> Snooze | None:
    attempt = current_job().attempt
    if ending == "fail" or (ending == "retry" and attempt == 1):
        raise ValueError(ending)
    if ending == "snooze" and "snoozes" not in current_job().meta:
        return Snooze(0.01)
    await asyncio.sleep(0.02)
    return None


@job(queue="counted")
async def block(seconds: float) -> None:
    """Blocks the event loop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

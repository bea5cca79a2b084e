"""Time that is waited for.

What is stored carries the time of the database. A clock here only measures how long this
process has waited, so that clocks of machines may differ without harm.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Protocol


class Clock(Protocol):
    """Measures and waits, in seconds."""

    def monotonic(self) -> float:
        """Seconds since some moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Wait for the event, at most so long. Returns whether it is set."""
        ...


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        if event.is_set():
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return event.is_set()
        return True


def told_to_end() -> bool:
    """Whether this task itself is being cancelled. If not, a CancelledError that it met is the
    end of something that it awaited, and a failure like any other."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Backoff:
    """Full-jitter exponential back-off: uniform between 0 and ``base · 2^n``, capped.

    Full jitter spreads a fleet that lost its server at the same moment (Brooker, "Exponential
    Backoff And Jitter", 2015). The first delay is never zero, so that a loop cannot spin.
    """

    def __init__(self, *, base_s: float = 0.1, cap_s: float = 15.0) -> None:
        self.base_s = base_s
        self.cap_s = cap_s
        self.failures = 0

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        ceiling = min(self.cap_s, self.base_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return max(self.base_s / 4, random.uniform(0, ceiling))

    def reset(self) -> None:
        """Forget the failures: the last try went well."""
        self.failures = 0

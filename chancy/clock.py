"""Clocks and back-off: how long this process waits.

Stored times come from the database. A clock only measures waiting in this process, so the clocks
of machines may differ.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from typing import Any, Protocol

#: The fraction of a lease for which its holder relies on it: the clocks of two machines may
#: differ in speed by a tenth, and the holder still stops before the lease expires.
LEASE_TRUSTED = 0.9
#: A clock that also advances while the machine is suspended, like the server's.
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """Measures and waits, in seconds."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never decreases."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        """Wait for the event, at most ``timeout_s`` seconds. Returns whether it is set."""
        ...


class ClockReading:
    """A point in time by the monotonic clocks of this process, and its age."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticks = clock.monotonic()
        self._boot = _boot_time()

    @property
    def ago_s(self) -> float:
        """Seconds since then by whichever clock ran faster. Neither of them can be set."""
        return max(self._clock.monotonic() - self._ticks, _boot_time() - self._boot)


def _boot_time() -> float:
    return 0.0 if _BOOT_CLOCK is None else time.clock_gettime(_BOOT_CLOCK)


class SystemClock:
    """The clock of this machine."""

    monotonic = staticmethod(time.monotonic)

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


async def run_briefly(work: Coroutine[Any, Any, object], clock: Clock, timeout_s: float) -> None:
    """Run a coroutine for at most ``timeout_s`` seconds by a clock, and then cancel it."""
    ended = asyncio.Event()
    task = asyncio.create_task(work)
    task.add_done_callback(lambda _: ended.set())
    try:
        await clock.wait(ended, timeout_s)
    finally:
        task.cancel()


def is_being_cancelled() -> bool:
    """Whether the current task itself is being cancelled.

    If not, a CancelledError that it caught comes from a task or future that it awaited, and is a
    failure like any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Backoff:
    """Full-jitter exponential back-off: uniform between 0 and ``base · 2^n``, capped.

    Full jitter spreads the reconnects of a fleet that lost its server at the same time (Brooker,
    "Exponential Backoff And Jitter", 2015). No delay is under a quarter of ``base``, so a loop
    cannot spin.
    """

    def __init__(self, *, base_s: float = 0.1, cap_s: float = 15.0) -> None:
        self.base_s = base_s
        self.cap_s = cap_s
        self.failures = 0

    def next_s(self) -> float:
        """Count one more failure and return the seconds to wait."""
        ceiling = min(self.cap_s, self.base_s * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return max(self.base_s / 4, random.uniform(0, ceiling))

    def next_until(self, give_up_at: float) -> float | None:
        """The seconds to wait, cut off at a time of `time.monotonic`; None once it has passed.

        A caller that promises to try for some time so tries once more at its end.
        """
        left_s = give_up_at - time.monotonic()
        return min(self.next_s(), left_s) if left_s > 0 else None

    def reset(self) -> None:
        """Reset the failure count after a success."""
        self.failures = 0

"""Clocks for tests: one that stands still until a test advances it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Protocol


class StoreClock(Protocol):
    """The clock of a store in memory."""

    def now(self) -> datetime:
        """The current time: aware, in UTC."""
        ...


class RealTime:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class ManualClock:
    """A `chancy.clock.Clock`, and a clock for a `MemoryBroker`, that only `advance` moves.

    :param start: the initial time.
    """

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._passed_s = 0.0
        self._timers: list[tuple[float, asyncio.Future[None]]] = []

    @property
    def sleepers(self) -> int:
        """The number of tasks that wait for this clock. Advance once the code under test waits."""
        return sum(not timer.done() for _, timer in self._timers)

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed_s)

    def monotonic(self) -> float:
        return self._passed_s

    def advance(self, seconds: float) -> None:
        """Advance the time, and wake the tasks that are due, the earliest first.

        They run once the caller awaits. A task that sleeps again sleeps from the new time on.
        """
        if seconds < 0:
            raise ValueError(f"time cannot go back: advance({seconds!r})")
        self._passed_s += seconds
        due = [entry for entry in self._timers if entry[0] <= self._passed_s]
        self._timers = [entry for entry in self._timers if entry[0] > self._passed_s]
        for _, timer in sorted(due, key=lambda entry: entry[0]):
            if not timer.done():
                timer.set_result(None)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
        else:
            await self._timer(seconds)

    async def wait(self, event: asyncio.Event, timeout_s: float) -> bool:
        if event.is_set():
            return True
        if timeout_s <= 0:
            await asyncio.sleep(0)
            return event.is_set()
        timer = self._timer(timeout_s)
        set_ = asyncio.ensure_future(event.wait())
        try:
            await asyncio.wait((timer, set_), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            set_.cancel()
        return event.is_set()

    def _timer(self, seconds: float) -> asyncio.Future[None]:
        timer = asyncio.get_running_loop().create_future()
        self._timers = [entry for entry in self._timers if not entry[1].done()]
        self._timers.append((self._passed_s + seconds, timer))
        return timer

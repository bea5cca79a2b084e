"""Jobs of queues with rules, and a book of what they do in this process."""

from __future__ import annotations

import asyncio
from collections import Counter

from chancy import RateLimited, Snooze, current_job, job


class Book:
    """The starts of jobs in order, and how many ran at a time."""

    def __init__(self) -> None:
        self.starts: list[tuple[str, int]] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        #: While set, jobs do not end.
        self.gate = asyncio.Event()
        self.gate.set()

    def start(self, tenant: str, number: int) -> None:
        self.starts.append((tenant, number))
        for key in ("", tenant):
            self.running[key] += 1
            self.most[key] = max(self.most[key], self.running[key])

    def end(self, tenant: str) -> None:
        for key in ("", tenant):
            self.running[key] -= 1

    def of(self, tenant: str) -> list[int]:
        return [number for name, number in self.starts if name == tenant]


BOOK = Book()


@job(queue="ruled", max_attempts=5)
async def work(tenant: str, number: int = 0, fail: int = 0, snooze: bool = False) -> Snooze | None:
    """Fails as often as asked, and then succeeds."""
    BOOK.start(tenant, number)
    try:
        await asyncio.sleep(0.001)
        await BOOK.gate.wait()
        attempt = current_job().attempt
        if attempt <= fail:
            raise ValueError(f"attempt {attempt}")
        if snooze and len(BOOK.of(tenant)) == 1:
            return Snooze(0.05)
        return None
    finally:
        BOOK.end(tenant)


@job(queue="ruled", max_attempts=3)
def refused(tenant: str, pause_s: float = 3.0) -> None:
    """Finds a service busy at its first attempt."""
    if "rate_limited" not in current_job().meta:
        raise RateLimited(pause_s)


@job(queue="ruled", max_attempts=1)
async def transfer(tenant: str, number: int = 0, broken: bool = False) -> None:
    BOOK.start(tenant, number)
    BOOK.end(tenant)
    if broken and "dead_letters" not in current_job().meta:
        raise ValueError("no such account")

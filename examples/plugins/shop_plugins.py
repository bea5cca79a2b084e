"""Three plugins: a limit by key, a counter of outcomes, and an alert on dead letters."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from chancy import Claim, Job, JobContext, Outcome, Plugin, Runtime, Settlement, State
from chancy.attempt import Raised
from chancy.plugin.pushing import PushContext

logger = logging.getLogger("shop")


class KeyIsBusy(Exception):
    """As many jobs of a key run in this worker as may."""


class KeyLimit(Plugin):
    """At most ``limit`` jobs of each value of an argument run at a time in one worker.

    A job beyond that runs again after ``delay_s`` seconds, and the attempt does not count. Jobs of
    cron and SQL, which `pushing` does not see, have no limit. For all workers together, in order
    and without that delay, use the rules of a queue.
    """

    def __init__(self, by: str, limit: int, delay_s: float = 0.1) -> None:
        self.by = by
        self.limit = limit
        self.delay_s = delay_s
        self._running: Counter[str] = Counter()

    @classmethod
    def get_identifier(cls) -> str:
        return "shop.key_limit"

    def get_dependencies(self) -> Sequence[str]:
        return ["chancy.retry"]  # judge after it

    def pushing(self, job: Job[Any], context: PushContext) -> Job[Any]:
        if self.by in job.arguments:
            return job.with_meta(shop_key=str(job.arguments[self.by]))
        return job

    @contextmanager
    def around(self, context: JobContext) -> Generator[None]:
        key = context.meta.get("shop_key")
        if key is None:
            yield
            return
        if self._running[key] >= self.limit:
            raise KeyIsBusy(key)
        self._running[key] += 1
        try:
            yield
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def judging(self, claim: Claim, outcome: Outcome, decision: Settlement) -> Settlement:
        if isinstance(outcome, Raised) and outcome.failure.is_a("shop_plugins.KeyIsBusy"):
            return Settlement(
                claim.id, claim.lease, State.SCHEDULED, delay_s=self.delay_s, refund=True
            )
        return decision


class OutcomeCounter(Plugin):
    """Counts the outcomes of the jobs of this worker, and logs the counts every minute."""

    def __init__(self, every_s: float = 60.0) -> None:
        self.every_s = every_s
        self.counts: Counter[tuple[str, State]] = Counter()

    @classmethod
    def get_identifier(cls) -> str:
        return "shop.outcomes"

    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        for settlement in batch:
            if settlement.claim is not None:
                self.counts[settlement.claim.func, settlement.state] += 1

    async def serve(self, runtime: Runtime) -> None:
        while True:
            await runtime.clock.sleep(self.every_s)
            for (func, state), count in sorted(self.counts.items()):
                logger.info("outcomes func=%s state=%s count=%d", func, state.label, count)


class DeadLetterAlert(Plugin):
    """Calls ``alert`` with the number of dead letters by function, at most once in ``every_s``."""

    def __init__(
        self, alert: Callable[[dict[str, int]], Awaitable[None]], every_s: float = 60.0
    ) -> None:
        self.alert = alert
        self.every_s = every_s
        self._dead: Counter[str] = Counter()
        self._found = asyncio.Event()

    @classmethod
    def get_identifier(cls) -> str:
        return "shop.alert"

    def settled(self, batch: Sequence[Settlement], stale: Sequence[Settlement]) -> None:
        for settlement in batch:
            if settlement.state is State.FAILED and settlement.claim is not None:
                self._dead[settlement.claim.func] += 1
                self._found.set()

    async def serve(self, runtime: Runtime) -> None:
        while True:
            await self._found.wait()
            self._found.clear()
            dead, self._dead = dict(self._dead), Counter()
            try:
                await self.alert(dead)
            except BaseException:
                self._dead.update(dead)  # the service is started again, and sends them then
                self._found.set()
                raise
            await runtime.clock.sleep(self.every_s)

"""Finds unreported outcomes of jobs, for plugins whose tables are in Postgres.

The jobs are stored by another broker, or are no longer stored anywhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Backoff, Clock
from chancy.errors import BrokerError, ConfigurationError
from chancy.job.definition import QueuedJob
from chancy.queue.queue import Queue

logger = logging.getLogger("chancy.plugin")

#: The name of the other broker.
_BROKER = "redis"
#: Outcomes of one statement.
BATCH = 500
#: Seconds for which a job must not be found before it counts as gone. In a queue without history,
#: a succeeded job is not found until its worker reports it, 1 to 4 s later if its hook failed.
GONE_S = 15.0


class FoundOutcome(Protocol):
    """The outcome of a job."""

    @property
    def job(self) -> UUID: ...


E = TypeVar("E", bound=FoundOutcome)
#: The position of a row in the order of a table: its batch or workflow, and its job.
Spot = tuple[UUID | None, UUID | None]
_START: Spot = (None, None)


class PendingOutcomes(Generic[E]):
    """Outcomes that another broker has stored and this process has not reported yet.

    They are reported in batches that grow with the load. If the process dies first, a sweep
    reports them.

    :param what: the plugin whose outcomes they are, in one word, for the log.
    :param most: the maximum number of pending outcomes; sweeps find the others.
    """

    def __init__(self, what: str, most: int = 20_000) -> None:
        self._what = what
        self._most = most
        self._outcomes: dict[UUID, E] = {}
        self._wakes: set[asyncio.Event] = set()

    def __len__(self) -> int:
        return len(self._outcomes)

    def add(self, outcomes: Sequence[E]) -> None:
        """Add outcomes to report. Above the maximum the oldest are dropped."""
        for outcome in outcomes:
            self._outcomes[outcome.job] = outcome
        while len(self._outcomes) > self._most:
            del self._outcomes[next(iter(self._outcomes))]
        if outcomes:
            for wake in self._wakes:
                wake.set()

    async def tell(self, told: Callable[[list[E]], Awaitable[None]], clock: Clock) -> None:
        """Report outcomes as they are added, until cancelled.

        A batch that fails with an unexpected error is dropped and left to the sweep.

        :param told: stores a batch of outcomes.
        """
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            while True:
                try:
                    while self._outcomes:
                        await self._report_batch(told)
                        backoff.reset()
                except BrokerError as error:
                    pause_s = backoff.next_s()
                    logger.warning(
                        "outcomes_retried of=%s jobs=%d next_try_s=%.1f error=%s",
                        self._what,
                        len(self._outcomes),
                        pause_s,
                        error,
                    )
                    await clock.sleep(pause_s)
                except Exception:
                    logger.warning(
                        "outcomes_left_to_sweep of=%s most=%d", self._what, BATCH, exc_info=True
                    )
                    await clock.sleep(backoff.next_s())
                else:
                    wake.clear()
                    await wake.wait()
        finally:
            self._wakes.discard(wake)

    async def _report_batch(self, report: Callable[[list[E]], Awaitable[None]]) -> None:
        batch = [self._outcomes.pop(id) for id in list(self._outcomes)[:BATCH]]
        try:
            await report(batch)
        except (BrokerError, asyncio.CancelledError):
            self.add(batch)
            raise


class MissingJobs:
    """Jobs that walks over a table did not find anywhere, each with the time of the first miss.

    It keeps the jobs of the current walk and of the one before; a job that is found again is
    dropped.

    :param most: the maximum number of jobs of a walk; others wait until these are handled.
    """

    def __init__(self, clock: Clock, most: int = 20_000) -> None:
        self._clock = clock
        self._most = most
        self._since: dict[UUID, float] = {}
        self._before: dict[UUID, float] = {}

    def __len__(self) -> int:
        return len(self._since) + len(self._before)

    def lasting(self, jobs: Collection[UUID]) -> set[UUID]:
        """Record jobs as missing, and return those first missing at least 15 s ago."""
        now = self._clock.monotonic()
        found: set[UUID] = set()
        for job in jobs:
            since = self._since.get(job, self._before.get(job, now))
            if len(self._since) < self._most:
                self._since[job] = since
            if now - since >= GONE_S:
                found.add(job)
        return found

    def walked(self) -> None:
        """End a walk over the table."""
        self._before, self._since = self._since, {}


class OutcomeSearch(Generic[E]):
    """Searches the other broker for unreported outcomes, one part of the table at a time.

    Each part is checked twice before the next one: a job that had ended at the first check and is
    still unreported at the second is not about to be reported by its worker. A part with jobs that
    are gone is checked until they have been gone for 15 s. So the search keeps one part in memory,
    however many there are.

    :param unsent: returns which of the jobs are still in the outbox to the other broker.
    """

    def __init__(
        self,
        broker: Broker,
        unsent: Callable[[list[UUID]], Awaitable[Collection[UUID]]],
        clock: Clock,
    ) -> None:
        self._broker = broker
        self._unsent = unsent
        self._clock = clock
        #: The row after which the part begins.
        self.after = _START
        self._again = False
        # Jobs of this part that had ended at the last check, each with the time of the first such
        # check; and the jobs that were gone at the first check of this part.
        self._seen: dict[UUID, float] = {}
        self._gone: frozenset[UUID] = frozenset()

    def possible(self) -> bool:
        """Whether the application supplies the other broker."""
        return supplied(self._broker)

    async def find(self, ids: list[UUID]) -> Mapping[UUID, QueuedJob | None]:
        """Jobs by id. A job that is gone maps to None; a job still in the outbox is left out.

        A job that has left the outbox has reached the other broker, so that broker is queried
        again after the outbox.

        :raises BrokerUnavailable: the other broker cannot be reached.
        """
        found: dict[UUID, QueuedJob | None] = {**await self._broker.get(ids)} if ids else {}
        missing = [id for id in ids if id not in found]
        if missing:
            unsent = set(await self._unsent(missing))
            sent = [id for id in missing if id not in unsent]
            found |= dict.fromkeys(sent)
            found |= await self._broker.get(sent) if sent else {}
        return found

    def twice(self, ends: Sequence[E], gone: Collection[UUID]) -> list[E]:
        """The outcomes that an earlier check found too; their workers report most of the others.

        :param gone: the jobs that were not found: they count only if first missing 15 s ago.
        """
        now = self._clock.monotonic()
        since = {end.job: self._seen.get(end.job) for end in ends}

        def lasts(job: UUID) -> bool:
            seen = since[job]
            return seen is not None and (job not in gone or now - seen >= GONE_S)

        found = [end for end in ends if lasts(end.job)]
        returned = {end.job for end in found}
        self._seen = {
            job: now if seen is None else seen for job, seen in since.items() if job not in returned
        }
        if not self._again:
            self._gone = frozenset(gone)
        return found

    def go_on(self, last: Spot | None) -> None:
        """End a check of the part, and advance to the next part after the second check.

        :param last: the last row of the part; None if no rows follow it.
        """
        if last is None and self.after == _START:
            self._again = False  # The only part: it is checked each time.
            return
        if self._again and not self._gone.isdisjoint(self._seen):
            return
        if self._again:
            self.after = last or _START
        self._again = not self._again


def supplied(broker: Broker) -> bool:
    """Whether the application supplies the other broker."""
    try:
        broker.check_queue(Queue(name="any", broker=_BROKER))
    except ConfigurationError:
        return False
    return True

"""Jobs whose ends nobody has told, for plugins whose tables are in Postgres: those that another
broker keeps, and those that are nowhere."""

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

#: How the other broker is called.
_BROKER = "redis"
#: Ends of one statement.
BATCH = 500
#: Seconds for which a job is nowhere before it counts as gone. Where no history is kept, one that
#: has succeeded is nowhere until its worker tells, if its hook had failed: 1 to 4 s later.
GONE_S = 15.0


class FoundOutcome(Protocol):
    """How a job has ended."""

    @property
    def job(self) -> UUID: ...


E = TypeVar("E", bound=FoundOutcome)
#: Where a row is in the order of a table: its batch or workflow, and its job.
Spot = tuple[UUID | None, UUID | None]
_START: Spot = (None, None)


class PendingOutcomes(Generic[E]):
    """The ends that another broker has stored, and that this process has yet to tell.

    As it is told once it is stored, it is told in batches that grow with the load. Who dies before
    it leaves it to a sweep.

    :param what: whose ends they are, in one word, for the log.
    :param most: so many wait to be told; sweeps find the others.
    """

    def __init__(self, what: str, most: int = 20_000) -> None:
        self._what = what
        self._most = most
        self._ends: dict[UUID, E] = {}
        self._wakes: set[asyncio.Event] = set()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, ends: Sequence[E]) -> None:
        """Tell these soon. The oldest are given up when there are too many."""
        for end in ends:
            self._ends[end.job] = end
        while len(self._ends) > self._most:
            del self._ends[next(iter(self._ends))]
        if ends:
            for wake in self._wakes:
                wake.set()

    async def tell(self, told: Callable[[list[E]], Awaitable[None]], clock: Clock) -> None:
        """Tell what there is, until cancelled. What cannot be told in a way that nobody has thought
        of is left to the sweep.

        :param told: writes ends.
        """
        backoff = Backoff(base_s=0.2, cap_s=5.0)
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            while True:
                try:
                    while self._ends:
                        await self._some(told)
                        backoff.reset()
                except BrokerError as error:
                    pause_s = backoff.next_s()
                    logger.warning(
                        "outcomes_retried of=%s jobs=%d next_try_s=%.1f error=%s",
                        self._what,
                        len(self._ends),
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

    async def _some(self, told: Callable[[list[E]], Awaitable[None]]) -> None:
        some = [self._ends.pop(id) for id in list(self._ends)[:BATCH]]
        try:
            await told(some)
        except (BrokerError, asyncio.CancelledError):
            self.add(some)
            raise


class MissingJobs:
    """Jobs that walks over a table found nowhere, and since when.

    It remembers those of one walk and of the one before: whoever is there again is forgotten.

    :param most: so many of a walk; the others have to wait until these are dealt with.
    """

    def __init__(self, clock: Clock, most: int = 20_000) -> None:
        self._clock = clock
        self._most = most
        self._since: dict[UUID, float] = {}
        self._before: dict[UUID, float] = {}

    def __len__(self) -> int:
        return len(self._since) + len(self._before)

    def lasting(self, jobs: Collection[UUID]) -> set[UUID]:
        """Those of these, which a look has found nowhere, that another one found nowhere at least
        15 s ago."""
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
        """A walk has come to its end."""
        self._before, self._since = self._since, {}


class OutcomeSearch(Generic[E]):
    """Asks the other broker what became of jobs whose ends nobody has told, of a part of them in
    each turn. It looks at each part twice before it goes on to the next one: what had ended at the
    first look, and is not told at the second, nobody else is about to tell. Where jobs are gone it
    looks until they have been so for 15 s. So it has to remember one part, however many there are.

    :param unsent: which of these jobs are on their way to it.
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
        #: Behind which row the part begins.
        self.after = _START
        self._again = False
        # Jobs of this part that had ended at the last look, each with the time of the first look
        # that saw it so; and those that were gone at the first look at this part.
        self._seen: dict[UUID, float] = {}
        self._gone: frozenset[UUID] = frozenset()

    def possible(self) -> bool:
        """Whether the other broker is supplied here."""
        return supplied(self._broker)

    async def find(self, ids: list[UUID]) -> Mapping[UUID, QueuedJob | None]:
        """Jobs by id; None is there for those that are gone, and nothing for those on their way.

        What is in the outbox no more has come to the other broker. So that is asked again after it.

        :raises BrokerUnavailable: it is away.
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
        """Those that were seen before: most of the others are about to be told where they ran.

        :param gone: which of them are nowhere: these were to be seen so at least 15 s ago.
        """
        now = self._clock.monotonic()
        since = {end.job: self._seen.get(end.job) for end in ends}

        def lasts(job: UUID) -> bool:
            seen = since[job]
            return seen is not None and (job not in gone or now - seen >= GONE_S)

        found = [end for end in ends if lasts(end.job)]
        told = {end.job for end in found}
        self._seen = {
            job: now if seen is None else seen for job, seen in since.items() if job not in told
        }
        if not self._again:
            self._gone = frozenset(gone)
        return found

    def go_on(self, last: Spot | None) -> None:
        """A look is done.

        :param last: the last row of the part; None: there are no more behind it.
        """
        if last is None and self.after == _START:
            self._again = False  # One part is all there is: it is looked at each time.
            return
        if self._again and not self._gone.isdisjoint(self._seen):
            return
        if self._again:
            self.after = last or _START
        self._again = not self._again


def supplied(broker: Broker) -> bool:
    """Whether there is another broker beside this one."""
    try:
        broker.check_queue(Queue(name="any", broker=_BROKER))
    except ConfigurationError:
        return False
    return True

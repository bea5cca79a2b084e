"""Pushing: one commit for pushes of the same moment, and patience with a server that is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from uuid import UUID

from chancy.broker.values import CHUNK, PreparedJob
from chancy.clock import Backoff
from chancy.errors import BrokerError, StatementFailed
from chancy.postgres.drivers.base import Connection
from chancy.postgres.push.bulk import Fetch, Replay, store_all
from chancy.postgres.push.statement import PATIENCE_S, insertion, keyed, known, stand_ins, without
from chancy.postgres.statements import Statements

Transaction = Callable[[], AbstractAsyncContextManager[Connection]]

#: Single pushes of one process that have a statement of their own at the same moment. What comes
#: meanwhile goes together, when one of them is done.
AT_ONCE = 2
#: Jobs of single pushes that go together, at most.
TOGETHER = 1_000
#: Seconds that single pushes wait for one of those on their way to be done, before they go beside
#: them, together: a server that is slow is not asked once for each.
_TURN_S = 0.25
_ALL_STORED: Mapping[UUID, UUID] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class _WaitingPush:
    """A single push that waits for its turn. The answer: whether it was stored with others."""

    job: PreparedJob
    stored: asyncio.Future[bool]


class PushCoalescer:
    """Stores the jobs of the callers of this process.

    A single push goes at once while few are on their way; a caller that pushes one job after the
    other never waits. Of many at once most wait for a moment and share a statement and a commit
    with their neighbours (100 callers: 4 times the jobs a second of a statement for each).
    If that statement fails each of them goes on alone, so that none pays for another.
    """

    def __init__(self, fetch: Fetch, transaction: Transaction, statements: Statements) -> None:
        self._fetch = fetch
        self._transaction = transaction
        self._sql = statements
        self._flying = 0
        self._waiting: list[_WaitingPush] = []
        self._flights: set[asyncio.Task[None]] = set()
        self._impatience: asyncio.TimerHandle | None = None

    async def push(self, jobs: Sequence[PreparedJob]) -> Mapping[UUID, UUID]:
        """Store jobs in a transaction of their own; see `Broker.push`.

        Those with unique keys share a statement with nobody: it may wait for another transaction.
        :raises BrokerError: the server refused them, or did not take them for 15 seconds.
        """
        began = time.monotonic()
        try:
            if keyed(jobs):
                return await self._insert(jobs)
            if len(jobs) > 1:
                await self._first_try(jobs)
            elif self._flying < AT_ONCE:
                await self._take_off(jobs)
            elif not await self._join(jobs[0]):
                await self._repeat(jobs)
        except BrokerError as error:
            return await self._persist(jobs, error, began + PATIENCE_S)
        return _ALL_STORED

    async def push_many(self, chunks: Iterator[Sequence[PreparedJob]]) -> Mapping[UUID, UUID]:
        """Store jobs in a transaction of their own; see `Broker.push_many`.

        :raises BrokerError: the server refused them, did not take them for 15 seconds, or was
            lost in the middle of more jobs than are kept.
        """
        first = next(chunks, [])
        if len(first) < CHUNK:
            return await self.push(first) if first else _ALL_STORED
        give_up_at = time.monotonic() + PATIENCE_S
        replay = Replay(chain([first], chunks))
        try:
            try:
                return await self._store(replay)
            except StatementFailed as error:
                if not (known(error) and replay.complete):
                    raise
                replay.restart()
                return await self._store(replay)
        except BrokerError as error:
            jobs = replay.everything()
            if jobs is None:
                raise
            return await self._persist(jobs, error, give_up_at)

    async def _store(self, replay: Replay) -> Mapping[UUID, UUID]:
        async with self._transaction() as session:
            return await store_all(self._sql, replay.insertions(self._sql), session.fetch)

    async def close(self) -> None:
        """Wait for what is on its way."""
        while self._flights:
            await asyncio.wait(self._flights)

    async def _persist(
        self, jobs: Sequence[PreparedJob], error: BrokerError, give_up_at: float
    ) -> Mapping[UUID, UUID]:
        """Go on after an error, as long as the server may take the jobs yet."""
        backoff = Backoff()
        while True:
            pause = backoff.next_s()
            if not error.retryable or time.monotonic() + pause > give_up_at:
                raise error
            await asyncio.sleep(pause)
            try:
                return await self._repeat(jobs)
            except BrokerError as next_error:
                error = next_error

    async def _first_try(self, jobs: Sequence[PreparedJob]) -> None:
        statement, parameters = insertion(self._sql, jobs, new=True)
        try:
            await self._fetch(statement, *parameters)
        except StatementFailed as error:
            if not known(error):
                raise
            await self._insert(jobs)

    async def _insert(self, jobs: Sequence[PreparedJob]) -> Mapping[UUID, UUID]:
        """Store jobs that may be there, or have unique keys."""
        statement, parameters = insertion(self._sql, jobs, new=False)
        return stand_ins(self._sql, statement, await self._fetch(statement, *parameters))

    async def _repeat(self, jobs: Sequence[PreparedJob]) -> Mapping[UUID, UUID]:
        """After a try whose outcome is not known: store those that are not there."""
        there = await self._fetch(self._sql.pushed_before, [job.id for job in jobs])
        missing = without(jobs, (row[0] for row in there))
        return await self._insert(missing) if missing else _ALL_STORED

    async def _take_off(self, jobs: Sequence[PreparedJob]) -> None:
        self._flying += 1
        try:
            await self._first_try(jobs)
        finally:
            self._land()

    def _land(self) -> None:
        """Let those who wait meanwhile go."""
        self._flying -= 1
        if self._flying < AT_ONCE:
            self._depart()

    def _depart(self) -> None:
        """Let those who wait go, together."""
        together = self._waiting[:TOGETHER]
        del self._waiting[:TOGETHER]
        if together:
            self._flying += 1
            flight = asyncio.create_task(self._fly(together), name="chancy push")
            self._flights.add(flight)
            flight.add_done_callback(self._flights.discard)
        self._watch()

    def _watch(self) -> None:
        """Let those who wait now go in a while at the latest."""
        if self._impatience is not None:
            self._impatience.cancel()
            self._impatience = None
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._impatience = loop.call_later(_TURN_S, self._depart)

    async def _fly(self, together: list[_WaitingPush]) -> None:
        stored = False
        try:
            await self._first_try([one.job for one in together])
            stored = True
        except BrokerError:
            pass  # each of them meets the error again by itself, or does not
        finally:
            for one in together:
                if not one.stored.done():
                    one.stored.set_result(stored)
            self._land()

    async def _join(self, job: PreparedJob) -> bool:
        """Go with others; False if that failed."""
        mine = _WaitingPush(job, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        if self._impatience is None:
            self._watch()
        try:
            return await mine.stored
        except asyncio.CancelledError:
            if mine in self._waiting:
                self._waiting.remove(mine)
                if not self._waiting:
                    self._watch()
            raise

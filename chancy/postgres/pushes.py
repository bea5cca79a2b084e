"""Pushing: the statement that suits the jobs, and one commit for pushes of the same moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from chancy.broker import PreparedJob
from chancy.clock import Backoff
from chancy.errors import BrokerError, StatementFailed
from chancy.postgres.drivers.base import Row
from chancy.postgres.drivers.sqlstates import UNIQUE_VIOLATION
from chancy.postgres.statements import Statements

T = TypeVar("T")
Fetch = Callable[..., Awaitable[Sequence[Row]]]

#: Seconds for which a push goes on trying while the server is away or refuses for the moment.
PATIENCE_S = 15.0
#: Single pushes of one process that have a statement of their own at the same moment. What comes
#: meanwhile goes together, when one of them is done.
AT_ONCE = 2
#: Jobs of single pushes that go together, at most.
TOGETHER = 1_000
#: Seconds that a single push waits for its turn to go with others, before it goes alone.
_TURN_S = 0.25


def first_try(sql: Statements, jobs: Sequence[PreparedJob]) -> tuple[str, list[object]]:
    """The statement and its parameters for jobs that are likely to be new.

    It fails with a unique violation if one of them is there; `repeated` is for that.
    """
    if len(jobs) == 1:
        return sql.push_one, [*jobs[0], True]
    return sql.push_new, [*columns(jobs), True]


def repeated(
    sql: Statements, jobs: Sequence[PreparedJob], *, guarded: bool = True
) -> tuple[str, list[object]]:
    """The statement for jobs of which some may be there; they stay as they are.

    :param guarded: whether the notice may be left to another push of the moment.
    """
    return sql.push, [*columns(jobs), guarded]


def known(error: BrokerError) -> bool:
    """Whether a first try failed because one of its jobs is there."""
    return isinstance(error, StatementFailed) and error.sqlstate == UNIQUE_VIOLATION


def columns(jobs: Sequence[PreparedJob]) -> list[list[object] | None]:
    """The parameters of the push statement but the last: one list for each field."""
    id, queue, priority, func, arguments, run_at, delay_s, max_attempts, meta = zip(
        *jobs, strict=True
    )
    return [
        list(id),
        _shared(queue),
        _shared(priority),
        _shared(func),
        list(arguments),
        _given(run_at),
        _given(delay_s),
        _shared(max_attempts),
        _given(meta),
    ]


def _shared(values: tuple[object, ...]) -> list[object]:
    """One value for all if they are equal, which is the usual case."""
    return [values[0]] if values.count(values[0]) == len(values) else list(values)


def _given(values: tuple[object, ...]) -> list[object] | None:
    return None if values.count(None) == len(values) else list(values)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A single push that waits for its turn. The answer: whether it was stored with others."""

    job: PreparedJob
    stored: asyncio.Future[bool]


class Pushes:
    """Stores the jobs of the callers of this process.

    A single push goes at once while few are on their way; a caller that pushes one job after the
    other never waits. Of many at once most wait for a moment and share a statement and a commit
    with their neighbours (100 callers: 4 times the jobs a second of a statement for each).
    If that statement fails each of them goes on alone, so that none pays for another.
    """

    def __init__(self, fetch: Fetch, statements: Statements) -> None:
        self._fetch = fetch
        self._sql = statements
        self._flying = 0
        self._waiting: list[_Waiting] = []
        self._flights: set[asyncio.Task[None]] = set()

    async def push(self, jobs: Sequence[PreparedJob]) -> None:
        """Store jobs in a transaction of their own; see `Broker.push`.

        :raises BrokerError: the server refused them, or did not take them for 15 seconds.
        """
        began = time.monotonic()
        try:
            if len(jobs) > 1:
                await self._first_try(jobs)
            elif self._flying < AT_ONCE:
                await self._take_off(jobs)
            elif not await self._join(jobs[0]):
                await self._repeat(jobs)
        except BrokerError as error:
            await self._persist(jobs, error, began + PATIENCE_S)

    async def close(self) -> None:
        """Wait for what is on its way."""
        while self._flights:
            await asyncio.wait(self._flights)

    async def _persist(
        self, jobs: Sequence[PreparedJob], error: BrokerError, give_up_at: float
    ) -> None:
        """Go on after an error, as long as the server may take the jobs yet."""
        backoff = Backoff()
        while True:
            pause = backoff.next_s()
            if not error.retryable or time.monotonic() + pause > give_up_at:
                raise error
            await asyncio.sleep(pause)
            try:
                await self._repeat(jobs)
                return
            except BrokerError as next_error:
                error = next_error

    async def _first_try(self, jobs: Sequence[PreparedJob]) -> None:
        statement, parameters = first_try(self._sql, jobs)
        try:
            await self._fetch(statement, *parameters)
        except StatementFailed as error:
            if not known(error):
                raise
            statement, parameters = repeated(self._sql, jobs)
            await self._fetch(statement, *parameters)

    async def _repeat(self, jobs: Sequence[PreparedJob]) -> None:
        """After a try whose outcome is not known: store those that are not there."""
        there = await self._fetch(self._sql.pushed_before, [job.id for job in jobs])
        missing = without(jobs, (row[0] for row in there))
        if missing:
            statement, parameters = repeated(self._sql, missing)
            await self._fetch(statement, *parameters)

    async def _take_off(self, jobs: Sequence[PreparedJob]) -> None:
        self._flying += 1
        try:
            await self._first_try(jobs)
        finally:
            self._land()

    def _land(self) -> None:
        """Let those who wait meanwhile go, together."""
        self._flying -= 1
        if self._waiting:
            together = self._waiting[:TOGETHER]
            del self._waiting[:TOGETHER]
            self._flying += 1
            flight = asyncio.create_task(self._fly(together), name="chancy push")
            self._flights.add(flight)
            flight.add_done_callback(self._flights.discard)

    async def _fly(self, together: list[_Waiting]) -> None:
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
        """Go with others; False if that failed, or did not begin soon enough."""
        loop = asyncio.get_running_loop()
        mine = _Waiting(job, loop.create_future())
        self._waiting.append(mine)
        impatience = loop.call_later(_TURN_S, self._leave, mine)
        try:
            return await mine.stored
        except asyncio.CancelledError:
            self._leave(mine)
            raise
        finally:
            impatience.cancel()

    def _leave(self, mine: _Waiting) -> None:
        if mine in self._waiting:
            self._waiting.remove(mine)
            if not mine.stored.done():
                mine.stored.set_result(False)


def without(jobs: Sequence[PreparedJob], there: Iterable[UUID]) -> list[PreparedJob]:
    """Those of the jobs whose ids are not there."""
    ids = set(there)
    return [job for job in jobs if job.id not in ids]

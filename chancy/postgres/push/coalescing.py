"""Coalesces concurrent pushes into one commit, and retries while the server is unavailable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from uuid import UUID

from chancy.broker.sizes import CHUNK_SIZE, size_of
from chancy.broker.values import CHUNK, PreparedJob
from chancy.clock import Backoff
from chancy.errors import BrokerError, StatementFailed
from chancy.postgres.drivers.base import Connection
from chancy.postgres.push.bulk import Fetch, Replay, pieces, store_all
from chancy.postgres.push.statement import (
    PATIENCE_S,
    FinishedMeanwhile,
    already_stored,
    check_unfinished,
    ids_of,
    insertion,
    keyed,
    stand_ins,
    without,
)
from chancy.postgres.statements import Statements

Transaction = Callable[[], AbstractAsyncContextManager[Connection]]

#: Statements for single pushes that one process runs at the same time. Pushes that arrive meanwhile
#: are stored together when one of these statements is done.
AT_ONCE = 2
#: Maximum number of single pushes that one statement stores, if they are no larger than a chunk.
TOGETHER = 1_000
#: Seconds after which waiting pushes stop waiting for a running statement and get a further one
#: together: a slow server does not get one statement for each.
_TURN_S = 0.25
_ALL_STORED: Mapping[UUID, UUID] = MappingProxyType({})


@dataclass(slots=True, eq=False)
class _WaitingPush:
    """A single push that waits to be stored together with others.

    :param stored: resolves to whether the shared statement stored the job.
    """

    job: PreparedJob
    stored: asyncio.Future[bool]


class PushCoalescer:
    """Stores the jobs that this process pushes, and coalesces concurrent pushes of single jobs.

    A single push is sent immediately while fewer than `AT_ONCE` are in flight, so a caller that
    pushes one job after the other never waits. Of many concurrent pushes most wait briefly and
    share a statement and a commit with others (100 callers: 4 times the jobs a second of one
    statement each). If a shared statement fails, each push is retried alone, so that one bad job
    does not fail the others.

    :param check: raises unless pushes are possible in the current event loop.
    """

    def __init__(
        self,
        fetch: Fetch,
        transaction: Transaction,
        statements: Statements,
        check: Callable[[], object],
    ) -> None:
        self._fetch = fetch
        self._transaction = transaction
        self._sql = statements
        self._check = check
        self._in_flight = 0
        self._waiting: list[_WaitingPush] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def push(self, jobs: Sequence[PreparedJob]) -> Mapping[UUID, UUID]:
        """Store jobs in a new transaction; see `Broker.push`.

        Jobs with unique keys never share a statement, as it may wait for another transaction.

        :raises BrokerError: the server rejected the jobs, or did not accept them for 15 seconds.
        """
        self._check()
        started = time.monotonic()
        try:
            if keyed(jobs):
                return await self._insert(jobs)
            if len(jobs) > 1:
                await self._store_new(jobs)
            elif self._in_flight < AT_ONCE:
                await self._store_alone(jobs)
            elif not await self._store_with_others(jobs[0]):
                await self._repeat([jobs])
        except BrokerError as error:
            return await self._retry([jobs], error, started + PATIENCE_S)
        return _ALL_STORED

    async def push_many(self, chunks: Iterator[Sequence[PreparedJob]]) -> Mapping[UUID, UUID]:
        """Store jobs in a new transaction; see `Broker.push_many`.

        :raises BrokerError: the server rejected the jobs, did not accept them for 15 seconds, or
            the connection was lost after more chunks than are kept for a repetition.
        """
        first = next(chunks, [])
        self._check()
        if len(first) < CHUNK:
            # The only chunk, unless it has fewer jobs since they are large.
            second = next(chunks, None)
            if second is None:
                return await self.push(first) if first else _ALL_STORED
            chunks = chain([second], chunks)
        give_up_at = time.monotonic() + PATIENCE_S
        replay = Replay(chain([first], chunks))
        try:
            try:
                return await self._store_bulk(replay)
            except StatementFailed as error:
                if not (already_stored(error) and replay.complete):
                    raise
                replay.restart()
                return await self._store_bulk(replay)
        except BrokerError as error:
            kept = replay.everything()
            if kept is None:
                raise
            return await self._retry(kept, error, give_up_at)

    async def _store_bulk(self, replay: Replay) -> Mapping[UUID, UUID]:
        async with self._transaction() as session:
            return await store_all(self._sql, replay.insertions(self._sql), session.fetch)

    async def close(self) -> None:
        """Wait for the shared statements in flight."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _retry(
        self, chunks: Sequence[Sequence[PreparedJob]], error: BrokerError, give_up_at: float
    ) -> Mapping[UUID, UUID]:
        """Repeat a push after an error until it succeeds, fails for good or runs out of time."""
        backoff = Backoff()
        while True:
            pause = backoff.next_until(give_up_at)
            if pause is None or not error.retryable:
                raise error
            await asyncio.sleep(pause)
            try:
                return await self._repeat(chunks)
            except BrokerError as next_error:
                error = next_error

    async def _store_new(self, jobs: Sequence[PreparedJob]) -> None:
        """Store jobs that are likely to be new and have no unique keys."""
        statement, parameters = insertion(self._sql, jobs, new=True)
        try:
            await self._fetch(statement, *parameters)
        except StatementFailed as error:
            if not already_stored(error):
                raise
            await self._insert(jobs)

    async def _insert(self, jobs: Sequence[PreparedJob]) -> Mapping[UUID, UUID]:
        """Store jobs that may exist or have unique keys."""
        statement, parameters = insertion(self._sql, jobs, new=False)
        return stand_ins(self._sql, statement, await self._fetch(statement, *parameters))

    async def _repeat(self, chunks: Sequence[Sequence[PreparedJob]]) -> Mapping[UUID, UUID]:
        """After an attempt with an unknown outcome: store the jobs that it has not stored.

        The attempt may still be in progress on the server, and the insertion waits for it. If a job
        of it has run by then, the insertion is undone. If it has stored jobs, a standby may not
        have confirmed that yet.
        """
        while True:
            found = await self._fetch(self._sql.pushed_before, ids_of(chunks))
            missing = [jobs for chunk in chunks if (jobs := without(chunk, found))]
            if not missing:
                await self._fetch(self._sql.confirm)
                return _ALL_STORED
            with suppress(FinishedMeanwhile):
                async with self._transaction() as session:
                    stored = await store_all(self._sql, pieces(self._sql, missing), session.fetch)
                    check_unfinished(await session.fetch(self._sql.pushed_before, ids_of(missing)))
                    await session.fetch(self._sql.confirm)
                return stored

    async def _store_alone(self, jobs: Sequence[PreparedJob]) -> None:
        self._in_flight += 1
        try:
            await self._store_new(jobs)
        finally:
            self._statement_done()

    def _statement_done(self) -> None:
        """Count a statement as done, and send the waiting pushes if there is room."""
        self._in_flight -= 1
        if self._in_flight < AT_ONCE:
            self._send_waiting()

    def _send_waiting(self) -> None:
        """Start one statement for the waiting pushes."""
        together: list[_WaitingPush] = []
        size = 0
        for push in self._waiting[:TOGETHER]:
            size += size_of(push.job)
            if together and size > CHUNK_SIZE:
                break
            together.append(push)
        del self._waiting[: len(together)]
        if together:
            self._in_flight += 1
            task = asyncio.create_task(self._store_together(together), name="chancy push")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._reset_timer()

    def _reset_timer(self) -> None:
        """Send the pushes that wait now after `_TURN_S` at the latest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_TURN_S, self._send_waiting)

    async def _store_together(self, together: list[_WaitingPush]) -> None:
        stored = False
        try:
            await self._store_new([push.job for push in together])
            stored = True
        except BrokerError:
            pass  # each push is repeated alone and gets its own error
        finally:
            for push in together:
                if not push.stored.done():
                    push.stored.set_result(stored)
            self._statement_done()

    async def _store_with_others(self, job: PreparedJob) -> bool:
        """Wait for a shared statement; returns False if it failed."""
        push = _WaitingPush(job, asyncio.get_running_loop().create_future())
        self._waiting.append(push)
        if self._timer is None:
            self._reset_timer()
        try:
            return await push.stored
        except asyncio.CancelledError:
            if push in self._waiting:
                self._waiting.remove(push)
                if not self._waiting:
                    self._reset_timer()
            raise

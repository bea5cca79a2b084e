"""Calls about batches: find, close, cancel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.broker.values import Cancellation
from chancy.errors import ConfigurationError
from chancy.plugin.tracking import supplied
from chancy.plugins.batch.outcomes import BatchJobOutcome, BatchRef, settle_statement
from chancy.plugins.batch.record import (
    BatchFilter,
    BatchRecord,
    BatchState,
    CallbackRecord,
    batch,
    callback,
)
from chancy.plugins.batch.store import statement, store_of
from chancy.results.reference import checked
from chancy.states import State

#: The most batches, and the most jobs of one, that a call returns.
MAX_FOUND = 1_000
#: Jobs that one call of the broker cancels, and the most rounds of searching for more.
_BATCH, _ROUNDS = 500, 5


class BatchCalls:
    """The batches of one application.

    :raises ConfigurationError: the broker has no SQL tables.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = store_of(broker)

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def find(self, wanted: BatchFilter) -> list[BatchRecord]:
        if not 1 <= wanted.limit <= MAX_FOUND:
            raise ConfigurationError(f"limit={wanted.limit} must be from 1 to {MAX_FOUND:,}")
        states = [int(state) for state in wanted.states]
        rows = await self._fetch(
            "find",
            None if wanted.ids is None else [checked(id, "batch") for id in wanted.ids],
            wanted.name,
            states or None,
            wanted.before,
            wanted.limit,
        )
        return [batch(row) for row in rows]

    async def get(self, id: UUID) -> BatchRecord | None:
        found = await self.find(BatchFilter(ids=[id], limit=1))
        return found[0] if found else None

    async def callbacks(self, id: UUID) -> list[CallbackRecord]:
        return [callback(row) for row in await self._fetch("callbacks", id)]

    async def bad(self, id: UUID, after: UUID | None, limit: int) -> list[tuple[UUID, State]]:
        """Jobs that failed or were cancelled, by id."""
        if not 1 <= limit <= MAX_FOUND:
            raise ConfigurationError(f"limit={limit} must be from 1 to {MAX_FOUND:,}")
        return [(job, State(state)) for job, state in await self._fetch("bad", id, after, limit)]

    async def close(self, id: UUID) -> bool:
        """Close a batch to more jobs. False if no such batch is running."""
        ((running,),) = await self._fetch("close", id, False)
        await self._fetch("look", id)
        return bool(running)

    async def cancel(self, id: UUID) -> bool:
        """Cancel waiting jobs, and ask running ones to stop. False if no such batch is running."""
        ((running,),) = await self._fetch("close", id, True)
        if running:
            for _ in range(_ROUNDS):
                if not await self._cancel_all(id):
                    break
            if supplied(self._broker):
                await self._cancel_away(id)
        await self._fetch("look", id)
        return bool(running)

    async def _cancel_all(self, id: UUID) -> bool:
        """Cancel the jobs in Postgres, and return whether the rows of some were locked."""
        after: UUID | None = None
        busy = False
        while rows := await self._fetch("live", id, after, _BATCH):
            after = rows[-1][0]
            jobs = [job for job, live in rows if live]
            if jobs:
                busy |= await self.stop((id, job) for job in jobs)
        return busy

    async def _cancel_away(self, id: UUID) -> None:
        """Cancel the jobs in the other broker, and those in its outbox before they reach it."""
        while rows := await self._fetch("take_back", id, 10 * _BATCH):
            cancelled = [
                BatchJobOutcome(BatchRef(id, None), row[0], int(State.CANCELLED)) for row in rows
            ]
            await self.settle(cancelled)
        after = UUID(int=0)
        while rows := await self._fetch("away", id, after, _BATCH):
            jobs = [job for batch, job, _ in rows if batch == id]
            await self.stop((id, job) for job in jobs)
            if len(jobs) < _BATCH:
                break
            after = jobs[-1]

    async def stop(self, jobs: Iterable[tuple[UUID, UUID]]) -> bool:
        """Cancel jobs, and report those that were waiting.

        :param jobs: pairs of the id of a batch and of a job.
        :returns: whether the rows of some jobs were locked.
        """
        batches = {job: batch for batch, job in jobs}
        answers = await self._broker.cancel(list(batches))
        await self.settle(
            BatchJobOutcome(BatchRef(batches[job], None), job, int(State.CANCELLED))
            for job, answer in answers.items()
            if answer is Cancellation.CANCELLED
        )
        return len(answers) < len(batches)

    async def settle(self, outcomes: Iterable[BatchJobOutcome]) -> None:
        """Store outcomes that no settlement has reported."""
        unreported = list(outcomes)
        if unreported:
            sql, *parameters = settle_statement(self._store.schema, unreported)
            await self._store.fetch(sql, *parameters)

    async def state(self, id: UUID) -> BatchState | None:
        """The state of a batch; also requests a notification when it ends."""
        found = await self._fetch("await", [id])
        return BatchState(found[0][1]) if found else None

"""Jobs of batches that another broker keeps: what has become of those whose end nobody has told."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.errors import BrokerUnavailable
from chancy.job.definition import QueuedJob
from chancy.plugin.tracking import BATCH, OutcomeSearch
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.ends import BatchJobOutcome, BatchRef
from chancy.plugins.batch.store import statement, store_of
from chancy.states import State

logger = logging.getLogger("chancy.batches")

#: Jobs of one turn: ten scripts of Redis, each of which holds up everybody else for 3 ms.
LOOKED_AT = 2_500


class BatchTracking:
    """Walks over them, some in each turn, and begins at the front when it has come to the end."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._store = store_of(broker)
        self._calls = BatchCalls(broker)
        self._search: OutcomeSearch[BatchJobOutcome] = OutcomeSearch(broker, self._unsent, clock)

    async def turn(self) -> int:
        """Tell of those that had ended in the turn before, too, or are gone for 15 s, and stop
        those of cancelled batches; gives how many ends that told. Nothing while the other broker
        is away, or where it is not supplied."""
        if not self._search.possible():
            return 0
        rows = await self._fetch("away", *self._search.after, LOOKED_AT)
        try:
            told = await self._look(rows)
        except BrokerUnavailable as error:
            logger.warning("batch_jobs_unknown jobs=%d error=%s", len(rows), error)
            return 0
        full = len(rows) == LOOKED_AT
        self._search.go_on((rows[-1][0], rows[-1][1]) if full else None)
        return told

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def _unsent(self, ids: list[UUID]) -> Collection[UUID]:
        return {row[0] for row in await self._fetch("unsent", ids)}

    async def _look(self, rows: Sequence[Sequence[Any]]) -> int:
        batches: dict[UUID, UUID] = {job: batch for batch, job, _ in rows}
        stopping = {job for _, job, stops in rows if stops}
        found = await self._search.find(list(batches))
        ends = [
            BatchJobOutcome(BatchRef(batches[id], None), id, state)
            for id, job in found.items()
            if (state := _state(job, id in stopping)) is not None
        ]
        gone = {id for id, job in found.items() if job is None}
        ends = self._search.twice(ends, gone)
        lost = [end.job for end in ends if end.job in gone and end.job not in stopping]
        if lost:
            logger.warning("batch_jobs_gone count=%d first=%s", len(lost), lost[0])
        for at in range(0, len(ends), BATCH):
            await self._calls.settle(ends[at : at + BATCH])
        on = [
            (batches[id], id)
            for id, job in found.items()
            if job is not None and not job.state.final
            if id in stopping and job.stop_asked_at is None
        ]
        if on:
            await self._calls.stop(on)
        return len(ends)


def _state(job: QueuedJob | None, stopping: bool) -> int | None:
    """How a job has ended that is there, or gone; None: it has not. What became of one that is gone
    cannot be known: it counts as failed."""
    if job is None:
        return int(State.CANCELLED if stopping else State.FAILED)
    return int(job.state) if job.state.final else None

"""Outcomes of jobs of batches that are in another broker and were not reported yet."""

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
from chancy.plugins.batch.outcomes import BatchJobOutcome, BatchRef
from chancy.plugins.batch.store import statement, store_of
from chancy.states import State

logger = logging.getLogger("chancy.batches")

#: Jobs of one turn: ten Redis scripts, each of which blocks the server for 3 ms.
PAGE_SIZE = 2_500


class BatchTracking:
    """Looks up jobs in the other broker, one part of them each turn, and then starts over."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._store = store_of(broker)
        self._calls = BatchCalls(broker)
        self._search: OutcomeSearch[BatchJobOutcome] = OutcomeSearch(broker, self._unsent, clock)

    async def turn(self) -> int:
        """Report the next part of the jobs, and stop jobs of cancelled batches.

        A job is reported if it had ended in the previous turn, too, or has been missing for 15 s.
        Does nothing while the other broker is unavailable, or if there is none.

        :returns: the number of outcomes reported.
        """
        if not self._search.possible():
            return 0
        rows = await self._fetch("away", *self._search.after, PAGE_SIZE)
        try:
            reported = await self._report(rows)
        except BrokerUnavailable as error:
            logger.warning("batch_jobs_unknown jobs=%d error=%s", len(rows), error)
            return 0
        full = len(rows) == PAGE_SIZE
        self._search.go_on((rows[-1][0], rows[-1][1]) if full else None)
        return reported

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def _unsent(self, ids: list[UUID]) -> Collection[UUID]:
        return {row[0] for row in await self._fetch("unsent", ids)}

    async def _report(self, rows: Sequence[Sequence[Any]]) -> int:
        batches: dict[UUID, UUID] = {job: batch for batch, job, _ in rows}
        stopping = {job for _, job, stops in rows if stops}
        found = await self._search.find(list(batches))
        outcomes = [
            BatchJobOutcome(BatchRef(batches[id], None), id, state)
            for id, job in found.items()
            if (state := _state(job, id in stopping)) is not None
        ]
        missing = {id for id, job in found.items() if job is None}
        outcomes = self._search.twice(outcomes, missing)
        lost = [
            outcome.job
            for outcome in outcomes
            if outcome.job in missing and outcome.job not in stopping
        ]
        if lost:
            logger.warning("batch_jobs_gone count=%d first=%s", len(lost), lost[0])
        for at in range(0, len(outcomes), BATCH):
            await self._calls.settle(outcomes[at : at + BATCH])
        unstopped = [
            (batches[id], id)
            for id, job in found.items()
            if job is not None and not job.state.final
            if id in stopping and job.stop_asked_at is None
        ]
        if unstopped:
            await self._calls.stop(unstopped)
        return len(outcomes)


def _state(job: QueuedJob | None, stopping: bool) -> int | None:
    """The final state of a job, which may be missing; None while it goes on. The outcome of a
    missing job is unknown: it counts as failed."""
    if job is None:
        return int(State.CANCELLED if stopping else State.FAILED)
    return int(job.state) if job.state.final else None

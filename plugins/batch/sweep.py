"""What repairs and bounds batches: the service beside a worker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.plugin.tracking import MissingJobs
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.elsewhere import BatchTracking
from chancy.plugins.batch.ends import BatchJobOutcome, BatchOutcomes, BatchRef
from chancy.plugins.batch.replays import BatchReplays
from chancy.plugins.batch.store import statement, store_of
from chancy.states import State

logger = logging.getLogger("chancy.batches")

#: Jobs that one statement looks at, and statements of one turn: 10,000 jobs, about 40 ms.
LOOKED_AT, LOOKS = 2_000, 5
#: Attempts that the worker asks after at once: where settlements are seconds behind, most are about
#: to be told.
ASKED = 1_000
#: Batches that one turn looks at whether they have ended.
BATCHES = 1_000
#: Jobs of one statement that takes ends, or deletes.
BATCH = 500
#: Statements of one turn that delete, of each kind: 50,000 batches.
_MOST_BATCHES = 100


class BatchSweep:
    """Repairs what a settlement could not tell.

    :param notes: the attempts that this process has seen end.
    :param keep_days: days for which batches that have ended are kept; None: for ever.
    """

    def __init__(
        self, broker: Broker, clock: Clock, notes: BatchOutcomes, *, keep_days: float | None
    ) -> None:
        self._store = store_of(broker)
        self._calls = BatchCalls(broker)
        self._elsewhere = BatchTracking(broker, clock)
        self._replays = BatchReplays(broker)
        self._absences = MissingJobs(clock)
        self._notes = notes
        self._keep_days = keep_days
        self._after: tuple[UUID | None, UUID | None] = (None, None)
        self._behind: UUID | None = None

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def ask(self) -> int:
        """Look at the attempts that ended here before the last look and were not settled in the way
        that the hook hears of, as those that completed in a transaction of their own; gives how
        many jobs have ended by it."""
        waiting = self._notes.age(ASKED)
        ended = 0
        ids = list(waiting)
        for at in range(0, len(ids), BATCH):
            some = ids[at : at + BATCH]
            rows = await self._fetch("settled", some)
            found = {row[0]: int(row[1]) for row in rows}
            # A queue that keeps no finished jobs says nothing of those that succeeded.
            states = {id: found.get(id, self._notes.failed.get(id)) for id in some}
            ends = [
                BatchJobOutcome(waiting[id], id, state)
                for id, state in states.items()
                if state is not None and State(state).final
            ]
            await self._calls.settle(ends)
            # One that runs, as far as the table knows, is about to be settled from here.
            known = {id: state for id, state in states.items() if state is not None}
            self._notes.forget(id for id, state in known.items() if state != State.RUNNING)
            self._notes.wait_for(id for id in some if id not in known)
            ended += len(ends)
        return ended

    async def turn(self) -> int:
        """Look at the next jobs of batches that should be in the table of jobs and are not; gives
        how many ends that told. Begins at the front again when it has come to the end."""
        repaired = 0
        for _ in range(LOOKS):
            rows = await self._fetch("missed", *self._after, LOOKED_AT)
            repaired += await self._repair(rows)
            place = (rows[-1][0], rows[-1][1]) if rows else (None, None)
            over = not rows or place == self._after
            self._after = (None, None) if over else place
            if over:
                self._absences.walked()
                break
        if repaired:
            logger.warning("batch_jobs_repaired count=%d", repaired)
        repaired += await self._elsewhere.turn() + await self._replays.turn()
        await self._end()
        return repaired

    async def _repair(self, rows: Sequence[Sequence[Any]]) -> int:
        """Tell of jobs that have ended. What became of one that is gone cannot be known: it counts
        as failed, of a batch that was cancelled as cancelled, once nobody can be about to tell
        where it ran."""
        gone = self._absences.lasting([row[1] for row in rows if row[2] and row[3] is None])
        ends = [
            BatchJobOutcome(BatchRef(batch, None), job, _lost(stopped) if state is None else state)
            for batch, job, missed, state, _, stopped in rows
            if missed and (state is not None or job in gone)
        ]
        if gone:
            logger.warning("batch_jobs_gone count=%d first=%s", len(gone), min(gone))
        for at in range(0, len(ends), BATCH):
            await self._calls.settle(ends[at : at + BATCH])
        # Of those that were added in the moment in which their batch was cancelled.
        on = [(batch, job) for batch, job, _, _, goes_on, _ in rows if goes_on]
        for at in range(0, len(on), BATCH):
            await self._calls.stop(on[at : at + BATCH])
        return len(ends)

    async def _end(self) -> None:
        """End batches that nobody ended."""
        rows = await self._fetch("stuck", self._behind, BATCHES)
        for id, stuck in rows:
            if stuck:
                await self._fetch("look", id)
        self._behind = rows[-1][0] if rows else None

    async def retain(self) -> int:
        """Forget batches that are too old; gives how many."""
        if self._keep_days is None:
            return 0
        age_s = self._keep_days * 86_400.0
        forgotten = 0
        # By turns, as both look at the oldest ones only.
        for _ in range(_MOST_BATCHES):
            ((jobs,),) = await self._fetch("forget_jobs", age_s, 10 * BATCH)
            ((count,),) = await self._fetch("forget", age_s, BATCH)
            forgotten += count
            if not jobs and not count:
                break
        if forgotten:
            logger.info("batches_forgotten count=%d", forgotten)
        return forgotten


def _lost(stopped: bool) -> int:
    """What a job counts as of which nobody knows what became of it."""
    return int(State.CANCELLED if stopped else State.FAILED)

"""The sweep of batches: repairs unreported outcomes, and deletes old batches."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.clock import Clock
from chancy.plugin.tracking import MissingJobs
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.outcomes import BatchJobOutcome, BatchOutcomes, BatchRef
from chancy.plugins.batch.store import statement, store_of
from chancy.plugins.batch.tracking import BatchTracking
from chancy.states import State

logger = logging.getLogger("chancy.batches")

#: Jobs that one statement scans, and the most statements of one turn: 10,000 jobs, about 40 ms.
PAGE_SIZE, MAX_PAGES = 2_000, 5
#: Jobs without success that one turn scans for replays.
REPLAYS_PAGE = 1_000
#: Recorded attempts that are checked at once: where settlements lag by seconds, most of them are
#: about to be reported.
MAX_CHECKED = 1_000
#: Batches that one turn scans for those that should have ended.
BATCHES = 1_000
#: Jobs of one statement that stores outcomes, or deletes.
BATCH = 500
#: Statements of one turn that delete, of each kind: 50,000 batches.
_MOST_BATCHES = 100


class BatchSweep:
    """Reports outcomes that settlements did not report.

    :param outcomes: the attempts that have ended in this process.
    :param keep_days: days for which ended batches are kept; None: for ever.
    """

    def __init__(
        self, broker: Broker, clock: Clock, outcomes: BatchOutcomes, *, keep_days: float | None
    ) -> None:
        self._store = store_of(broker)
        self._calls = BatchCalls(broker)
        self._tracking = BatchTracking(broker, clock)
        self._replays = BatchReplays(broker)
        self._missing = MissingJobs(clock)
        self._outcomes = outcomes
        self._keep_days = keep_days
        self._after: tuple[UUID | None, UUID | None] = (None, None)
        self._after_batch: UUID | None = None

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def check_recorded(self) -> int:
        """Check attempts recorded before the previous check that were not settled through the hook,
        such as jobs completed in a transaction of their own.

        :returns: the number of outcomes reported.
        """
        waiting = self._outcomes.age(MAX_CHECKED)
        reported = 0
        ids = list(waiting)
        for at in range(0, len(ids), BATCH):
            some = ids[at : at + BATCH]
            rows = await self._fetch("settled", some)
            found = {row[0]: int(row[1]) for row in rows}
            # The table has no jobs that succeeded in a queue without history.
            states = {id: found.get(id, self._outcomes.unreported.get(id)) for id in some}
            outcomes = [
                BatchJobOutcome(waiting[id], id, state)
                for id, state in states.items()
                if state is not None and State(state).final
            ]
            await self._calls.settle(outcomes)
            # A job that is running in the table is about to be settled by this process.
            known = {id: state for id, state in states.items() if state is not None}
            self._outcomes.discard(id for id, state in known.items() if state != State.RUNNING)
            self._outcomes.mark_away(id for id in some if id not in known)
            reported += len(outcomes)
        return reported

    async def turn(self) -> int:
        """Repair the next jobs of batches that should be in the table of jobs and are not, and end
        batches; after the last job, start over.

        :returns: the number of outcomes reported.
        """
        repaired = 0
        for _ in range(MAX_PAGES):
            rows = await self._fetch("missed", *self._after, PAGE_SIZE)
            repaired += await self._repair(rows)
            last = (rows[-1][0], rows[-1][1]) if rows else (None, None)
            over = not rows or last == self._after
            self._after = (None, None) if over else last
            if over:
                self._missing.walked()
                break
        if repaired:
            logger.warning("batch_jobs_repaired count=%d", repaired)
        repaired += await self._tracking.turn() + await self._replays.turn()
        await self._end_stuck()
        return repaired

    async def _repair(self, rows: Sequence[Sequence[Any]]) -> int:
        """Report jobs that have ended. A missing job, whose outcome is unknown, counts as failed,
        or as cancelled in a cancelled batch, once its worker can no longer report it."""
        gone = self._missing.lasting([row[1] for row in rows if row[2] and row[3] is None])
        outcomes = [
            BatchJobOutcome(
                BatchRef(batch, None), job, _lost_state(stopped) if state is None else state
            )
            for batch, job, missed, state, _, stopped in rows
            if missed and (state is not None or job in gone)
        ]
        if gone:
            logger.warning("batch_jobs_gone count=%d first=%s", len(gone), min(gone))
        for at in range(0, len(outcomes), BATCH):
            await self._calls.settle(outcomes[at : at + BATCH])
        # Jobs that were added while their batch was being cancelled.
        unstopped = [(batch, job) for batch, job, _, _, goes_on, _ in rows if goes_on]
        for at in range(0, len(unstopped), BATCH):
            await self._calls.stop(unstopped[at : at + BATCH])
        return len(outcomes)

    async def _end_stuck(self) -> None:
        """End batches whose jobs have all ended."""
        rows = await self._fetch("stuck", self._after_batch, BATCHES)
        for id, stuck in rows:
            if stuck:
                await self._fetch("look", id)
        self._after_batch = rows[-1][0] if rows else None

    async def purge(self) -> int:
        """Delete batches that ended over ``keep_days`` ago, and return how many."""
        if self._keep_days is None:
            return 0
        age_s = self._keep_days * 86_400.0
        purged = 0
        # Alternately, as both statements scan the oldest batches only.
        for _ in range(_MOST_BATCHES):
            ((jobs,),) = await self._fetch("forget_jobs", age_s, 10 * BATCH)
            ((count,),) = await self._fetch("forget", age_s, BATCH)
            purged += count
            if not jobs and not count:
                break
        if purged:
            logger.info("batches_forgotten count=%d", purged)
        return purged


def _lost_state(stopped: bool) -> int:
    """The state of a job whose outcome is unknown."""
    return int(State.CANCELLED if stopped else State.FAILED)


class BatchReplays:
    """Reports ended replays of dead letters to their batches, some in each turn.

    A replay is a job of its own, and no table of batches refers to it before it has ended. If the
    hook fails to report it and the worker dies, only its dead letter refers to it.
    """

    def __init__(self, broker: Broker) -> None:
        self._store = store_of(broker)
        self._calls = BatchCalls(broker)
        self._has_dead_letters = False
        self._after: tuple[UUID | None, UUID | None] = (None, None)

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def turn(self) -> int:
        """Report the next replays that have ended, and return how many. A replay that succeeded in
        a queue without history cannot be found."""
        if not self._has_dead_letters:
            ((self._has_dead_letters,),) = await self._fetch("letters")
        if not self._has_dead_letters:
            return 0
        rows = await self._fetch("replayed", *self._after, REPLAYS_PAGE)
        outcomes = [
            BatchJobOutcome(BatchRef(batch, root), job, state)
            for batch, root, job, state in rows
            if job is not None
        ]
        await self._calls.settle(outcomes)
        self._after = (rows[-1][0], rows[-1][1]) if len(rows) == REPLAYS_PAGE else (None, None)
        return len(outcomes)

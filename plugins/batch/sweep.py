"""The sweep of batches: repairs unreported outcomes, and deletes old batches."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from chancy.plugin.tracking.sweep import GroupSweep, Row
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.outcomes import BatchJobOutcome, BatchRef
from chancy.states import State

#: Batches that one turn scans for those that should have ended.
BATCHES = 1_000


class BatchSweep(GroupSweep[BatchRef, BatchJobOutcome]):
    """Reports outcomes that settlements did not report, and ends batches."""

    calls = BatchCalls
    groups = "batches"
    forget_members = "forget_jobs"
    #: On a busy server a settlement may wait for seconds.
    check_s = 2.0
    #: 10,000 jobs, about 40 ms.
    page, max_pages = 2_000, 5
    replays_page = 1_000

    _after_batch: UUID | None = None

    def _settled(self, ref: BatchRef, row: Row) -> BatchJobOutcome:
        id, state = row
        return BatchJobOutcome(ref, id, state)

    async def turn(self) -> int:
        """`GroupSweep.turn`; then end batches whose jobs have all ended."""
        repaired = await super().turn()
        rows = await self._tables.fetch("stuck", self._after_batch, BATCHES)
        for id, stuck in rows:
            if stuck:
                await BatchCalls(self._broker).look(id)
        self._after_batch = rows[-1][0] if rows else None
        return repaired

    async def _missed(self, after: Row) -> Sequence[Row]:
        return await self._tables.fetch("missed", *after, self.page)

    async def _repair(self, rows: Sequence[Row]) -> int:
        """A missing job, whose outcome is unknown, counts as failed, or as cancelled in a cancelled
        batch, once its worker can no longer report it."""
        gone = self._gone([row[1] for row in rows if row[2] and row[3] is None])
        outcomes = [
            BatchJobOutcome(
                BatchRef(batch, None), job, _lost_state(stopped) if state is None else state
            )
            for batch, job, missed, state, _, stopped in rows
            if missed and (state is not None or job in gone)
        ]
        left = await self._calls.report(outcomes)
        # Jobs that were added while their batch was being cancelled.
        await self._stop([job for _, job, _, _, goes_on, _ in rows if goes_on])
        return len(outcomes) - len(left)

    def _replay(self, row: Row) -> BatchJobOutcome | None:
        batch, root, job, state = row
        return None if job is None else BatchJobOutcome(BatchRef(batch, root), job, state)


def _lost_state(stopped: bool) -> int:
    """The state of a job whose outcome is unknown."""
    return int(State.CANCELLED if stopped else State.FAILED)

"""Calls about batches: find, close, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from chancy.broker.values import Cancellation
from chancy.errors import StatementFailed
from chancy.plugin.tables import from_row
from chancy.plugin.tracking.groups import CANCEL_ROUNDS, GroupCalls, check_limit
from chancy.plugin.tracking.recorded import BATCH
from chancy.plugins.batch.outcomes import SQL, BatchJobOutcome, BatchRef, settle_parameters
from chancy.plugins.batch.record import (
    BatchRecord,
    BatchState,
    CallbackRecord,
    On,
    batch,
)
from chancy.states import State


class BatchCalls(GroupCalls[BatchRecord, BatchState]):
    """The batches of one application."""

    sql, kind, states = SQL, "batch", BatchState

    def _record(self, row: Sequence[Any]) -> BatchRecord:
        return batch(row)

    async def callbacks(self, id: UUID) -> list[CallbackRecord]:
        rows = await self._tables.fetch("callbacks", id)
        return [from_row(CallbackRecord, row, on=On) for row in rows]

    async def bad(self, id: UUID, after: UUID | None, limit: int) -> list[tuple[UUID, State]]:
        """Jobs that failed or were cancelled, by id."""
        check_limit(limit)
        return [
            (job, State(state)) for job, state in await self._tables.fetch("bad", id, after, limit)
        ]

    async def close(self, id: UUID) -> bool:
        """Close a batch to more jobs. False if no such batch is running."""
        ((running,),) = await self._tables.fetch("close", id, False)
        await self.look(id)
        return bool(running)

    async def cancel(self, id: UUID) -> bool:
        """Cancel waiting jobs, and ask running ones to stop. False if no such batch is running."""
        ((running,),) = await self._tables.fetch("close", id, True)
        if running:
            for _ in range(CANCEL_ROUNDS):
                if not await self._cancel_all(id):
                    break
        await self.look(id)
        return bool(running)

    async def look(self, id: UUID) -> None:
        """End a batch if all of its jobs have ended. If it is locked, or the server refuses its
        callbacks, the sweep tries again."""
        try:
            await self._tables.fetch("look", id)
        except StatementFailed as error:
            self.postpone(id, error)

    async def _cancel_all(self, id: UUID) -> bool:
        """Cancel the jobs, report those that were waiting, and return whether the rows of some were
        locked."""
        after: UUID | None = None
        busy = False
        while rows := await self._tables.fetch("live", id, after, BATCH):
            after = rows[-1][0]
            jobs = [job for job, live in rows if live]
            if jobs:
                answers = await self.cancel_members(jobs)
                busy |= len(answers) < len(jobs)
                await self.report(
                    [
                        BatchJobOutcome(BatchRef(id, None), job, int(State.CANCELLED))
                        for job, answer in answers.items()
                        if answer is Cancellation.CANCELLED
                    ]
                )
        return busy

    async def _store(self, outcomes: Sequence[BatchJobOutcome]) -> None:
        await self._tables.fetch("report", *settle_parameters(outcomes))

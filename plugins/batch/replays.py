"""Replays of dead letters that have ended, and of which nobody told their batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.ends import BatchJobOutcome, BatchRef
from chancy.plugins.batch.store import statement, store_of

#: Jobs of one turn that did not go well.
LOOKED_AT = 1_000


class BatchReplays:
    """Walks over the jobs that did not go well, some in each turn.

    A replay is a job of its own, which no table of batches knows before it has ended: so if the
    hook fails to tell of it, and the worker dies, only its dead letter still knows it.
    """

    def __init__(self, broker: Broker) -> None:
        self._store = store_of(broker)
        self._calls = BatchCalls(broker)
        self._there = False
        self._after: tuple[UUID | None, UUID | None] = (None, None)

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        return await self._store.fetch(statement(name, self._store.schema), *parameters)

    async def turn(self) -> int:
        """Tell of those that have ended; gives how many. A queue that keeps no finished jobs says
        nothing of those that succeeded."""
        if not self._there:
            ((self._there,),) = await self._fetch("letters")
        if not self._there:
            return 0
        rows = await self._fetch("replayed", *self._after, LOOKED_AT)
        ends = [
            BatchJobOutcome(BatchRef(batch, root), job, state)
            for batch, root, job, state in rows
            if job is not None
        ]
        await self._calls.settle(ends)
        self._after = (rows[-1][0], rows[-1][1]) if len(rows) == LOOKED_AT else (None, None)
        return len(ends)

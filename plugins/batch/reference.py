"""Handles to batches that were pushed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from chancy.broker.contract import Broker
from chancy.job.definition import Job
from chancy.plugin.tracking.groups import GroupReference
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.pushing import Addition, Pushing, transaction
from chancy.plugins.batch.record import BatchProgress, BatchRecord, BatchState, CallbackRecord
from chancy.states import State


class BatchReference(GroupReference[Pushing, BatchState]):
    """A handle to one batch. Its id is known before the push commits."""

    __slots__ = ("_calls",)
    kind = "batch"

    def __init__(
        self, id: UUID, chancy: Pushing, broker: Broker | None = None, *, stored: bool = False
    ) -> None:
        super().__init__(id, chancy, broker, stored=stored)
        self._calls = BatchCalls(self._broker)

    async def get(self) -> BatchRecord | None:
        """The current batch; None if it is not committed, or was purged."""
        return await self._calls.get(self.id)

    async def progress(self) -> BatchProgress | None:
        """The number of its jobs by outcome. Reads at most 16 rows, however many jobs there are."""
        found = await self.get()
        return None if found is None else found.progress

    async def callbacks(self) -> Sequence[CallbackRecord]:
        """Its callbacks, with the times at which they were pushed."""
        return await self._calls.callbacks(self.id)

    async def bad(
        self, *, after: UUID | None = None, limit: int = 50
    ) -> Sequence[tuple[UUID, State]]:
        """Jobs that failed or were cancelled, by id.

        :param after: only jobs with a larger id: the last id of the previous page.
        :param limit: 1 to 1,000.
        """
        return await self._calls.bad(self.id, after, limit)

    async def wait(self, timeout_s: float | None = None) -> BatchState:
        """Wait until all of its jobs have ended, and return its final state.

        Waiters are woken by notifications; all waiters of an application share one session. The
        batch need not exist yet, unless `stored`.

        :raises WaitTimeout: it has not ended within ``timeout_s`` seconds. It continues.
        :raises JobError: the batch is gone, because it was purged or deleted. If it is missing and
            not `stored`, the wait continues.
        """
        return (await self._end(self._calls, timeout_s)).state

    def sync_get(self) -> BatchRecord | None:
        """`get` for code without an event loop."""
        return self._sync(lambda here: here.get())

    def sync_wait(self, timeout_s: float | None = None) -> BatchState:
        """`wait` for code without an event loop."""
        return self._sync(lambda here: here.wait(timeout_s), waits=True)

    async def add(
        self, jobs: Iterable[Job[Any]], *, within: object | None = None, validate: bool = True
    ) -> int:
        """Add jobs to the batch while it is open, and return their number.

        :param within: a connection with an open transaction of the caller, as for a push. `close`
            blocks until that transaction ends.
        :raises PushError: a job cannot be stored, or the batch is closed, has ended, or would
            have over 1,000,000 jobs. Nothing was written; roll back a transaction of your own.
        """
        async with transaction(self._chancy, within, validate=validate) as tx:
            return await Addition(self.id, None, jobs).add(tx)

    async def close(self) -> bool:
        """Close the batch to more jobs from outside, so that it ends when its jobs have ended.

        Blocks until transactions that are adding jobs end.

        :returns: False if it does not exist or has ended.
        """
        return await self._calls.close(self.id)

    async def cancel(self) -> bool:
        """Cancel waiting jobs, and ask running ones to stop. The batch ends when they have ended.

        :returns: False if it does not exist or has ended.
        """
        return await self._calls.cancel(self.id)

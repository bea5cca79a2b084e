"""Handles to batches that were pushed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

from chancy.job.definition import Job
from chancy.plugins.batch.calls import BatchCalls
from chancy.plugins.batch.pushing import Addition, Pushing
from chancy.plugins.batch.record import BatchProgress, BatchRecord, BatchState, CallbackRecord
from chancy.plugins.batch.waiting import Waiting
from chancy.results.reference import checked
from chancy.states import State


class BatchReference:
    """A handle to one batch. Its id is known before the push commits."""

    __slots__ = ("_calls", "_chancy", "_waiting", "id")

    def __init__(self, id: UUID, chancy: Pushing, waiting: Callable[[], Waiting]) -> None:
        self.id = checked(id, "batch")
        self._chancy = chancy
        self._calls = BatchCalls(chancy.broker)
        self._waiting = waiting

    def __repr__(self) -> str:
        return f"BatchReference({self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchReference) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def get(self) -> BatchRecord | None:
        """The batch as it is now; None if there is none (not committed, or forgotten)."""
        return await self._calls.get(self.id)

    async def progress(self) -> BatchProgress | None:
        """How many of its jobs have ended. It reads up to 16 rows, however many jobs there are."""
        found = await self.get()
        return None if found is None else found.progress

    async def callbacks(self) -> Sequence[CallbackRecord]:
        """Its callbacks, and when they were pushed."""
        return await self._calls.callbacks(self.id)

    async def bad(
        self, *, after: UUID | None = None, limit: int = 50
    ) -> Sequence[tuple[UUID, State]]:
        """Jobs that have failed or were cancelled, by id.

        :param after: only those behind this one: the last of the page before.
        :param limit: 1 to 1,000.
        """
        return await self._calls.bad(self.id, after, limit)

    async def finished(self, timeout_s: float | None = None) -> BatchState:
        """Wait until all of its jobs have ended, and give how.

        A notice wakes; however many wait in one application, they share one session. A batch that
        is not there yet is waited for.
        :raises WaitTimeout: it has not within ``timeout_s`` seconds. It goes on.
        """
        return await self._waiting().wait(self.id, timeout_s)

    async def add(
        self, jobs: Iterable[Job[Any]], *, within: object | None = None, validate: bool = True
    ) -> int:
        """Add jobs to it while it is open; gives how many.

        :param within: a connection in a transaction of the caller's, as of a push. Who closes the
            batch meanwhile waits for its end.
        :raises PushError: a job cannot be stored, or the batch is closed, has ended, or would
            have over 1,000,000 jobs. Nothing was written; a transaction of yours is to be undone.
        """
        addition = Addition(self._chancy, self.id, None, jobs)
        return await addition.add(self._chancy, within, validate=validate)

    async def close(self) -> bool:
        """Let it get no more jobs from outside: it ends when those that it has have ended.

        :returns: False if there is none, or it has ended already.
        """
        return await self._calls.close(self.id)

    async def cancel(self) -> bool:
        """Cancel its jobs that wait, and ask those that run to stop. It ends when they have.

        :returns: False if there is none, or it has ended already.
        """
        return await self._calls.cancel(self.id)

"""Pushes batches, and adds jobs to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from chancy.context.context import JobContext, current_job
from chancy.errors import LeaseLost, PushError
from chancy.job.definition import Job
from chancy.plugin.runtime import Application
from chancy.plugins.batch.description import MAX_JOBS, Batch, members, shards
from chancy.plugins.batch.outcomes import KEY, SQL
from chancy.postgres.drivers.base import Connection
from chancy.postgres.within import bind, bind_blocking
from chancy.postgres.within.calls import Fetch
from chancy.results.reference import References

#: Jobs of one statement that adds them to a batch.
_SLICE = 5_000


class Pushing(Application, Protocol):
    """An application that pushes many jobs: a `chancy.app.Chancy`."""

    async def push_many(
        self, jobs: Iterable[Job[Any]], *, within: object | None = None, validate: bool = True
    ) -> References[Any]: ...

    def transaction(self) -> AbstractAsyncContextManager[Connection]: ...

    def sync_push_many(
        self, jobs: Iterable[Job[Any]], *, within: object | None = None, validate: bool = True
    ) -> References[Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext:
    """The job of a batch that is running in this context, with its lease."""

    batch: UUID
    job: UUID
    lease: UUID

    @classmethod
    def current(cls) -> BatchContext:
        """The running job. Raises `PushError` if it has no batch, `NoCurrentJob` without a job."""
        context: JobContext = current_job()
        try:
            batch = UUID(context.meta[KEY]["id"])
        except (KeyError, TypeError, ValueError):
            raise PushError(
                f"job {context.id} ({context.func}) is in no batch: to add jobs to an open batch "
                "from outside, use its reference"
            ) from None
        return cls(batch=batch, job=context.id, lease=context.lease)


#: Pushes jobs in the transaction, and returns their references.
PushJobs = Callable[[Iterable[Job[Any]]], Awaitable[References[Any]]]


class _Transaction:
    """The transaction that stores a batch, or jobs of one.

    :param push: pushes jobs in it.
    """

    def __init__(self, fetch: Fetch, push: PushJobs, schema: str) -> None:
        self._fetch = fetch
        self._push = push
        self._schema = schema

    async def fetch(self, name: str, *parameters: object) -> Sequence[Any]:
        return await self._fetch(SQL.statement(name, self._schema), *parameters)

    async def join(self, id: UUID, jobs: Iterable[Job[Any]]) -> int:
        """Push jobs, add them to a batch, and return how many."""
        ids = [reference.id for reference in await self._push(jobs)]
        joined = 0
        for at in range(0, len(ids), _SLICE):
            joined += (await self.fetch("join", id, ids[at : at + _SLICE]))[0][0]
        return joined


class Push:
    """A batch to push.

    :raises PushError: a callback cannot be stored.
    """

    def __init__(
        self,
        chancy: Application,
        batch: Batch,
        jobs: Iterable[Job[Any]],
        *,
        validate: bool,
        within: bool,
    ) -> None:
        self._batch = batch
        self._callbacks = batch.callbacks(chancy, validate=validate, within=within)
        self._jobs = members(jobs, batch.id, batch.name, MAX_JOBS)

    async def push(self, tx: _Transaction) -> None:
        """Store the batch."""
        batch = self._batch
        ((new,),) = await tx.fetch("begin", batch.id, batch.name, batch.open, *self._callbacks)
        if new:
            joined = await tx.join(batch.id, self._jobs)
            await tx.fetch("seal", batch.id, joined, shards(joined, may_grow=batch.open))


class Addition:
    """Jobs to add to a batch.

    :param here: the running job of the batch that adds them; None: they are added from outside.
    """

    def __init__(self, id: UUID, here: BatchContext | None, jobs: Iterable[Job[Any]]) -> None:
        self._id = id
        self._here = here
        self._jobs = jobs

    def _admitted(self, answer: str, count: int) -> Iterator[Job[Any]]:
        """The jobs, marked as jobs of the batch. Raises unless ``batches_admit`` allows them."""
        where = f"batch {self._id} gets no more jobs"
        match answer:
            case "more":
                return members(self._jobs, self._id, str(self._id), MAX_JOBS - count)
            case "lost" if self._here is not None:
                raise LeaseLost(
                    f"{where} by job {self._here.job}: another worker has it, or it has ended"
                )
            case "closed":
                raise PushError(f"{where}: it is not open, or was closed")
            case "unknown":
                raise PushError(f"{where}: no batch has this id")
            case _:
                again = (
                    ""
                    if self._here is None
                    else ", or this job is a replay, for which the batch does not wait"
                )
                raise PushError(f"{where}: it has ended, or was cancelled{again}")

    async def add(self, tx: _Transaction) -> int:
        """Store the jobs, and return how many."""
        here = self._here
        ((answer, count),) = await tx.fetch(
            "admit", self._id, here and here.job, here and here.lease
        )
        joined = await tx.join(self._id, self._admitted(answer, int(count)))
        if joined:
            await tx.fetch("added", self._id, joined)
        return joined


@asynccontextmanager
async def transaction(
    chancy: Pushing, within: object | None, *, validate: bool
) -> AsyncGenerator[_Transaction]:
    """A transaction of the caller's, or one of its own."""
    schema = SQL.on(chancy.broker).schema
    if within is None:
        async with chancy.transaction() as tx, transaction(chancy, tx, validate=validate) as own:
            yield own
        return

    async def push(jobs: Iterable[Job[Any]]) -> References[Any]:
        return await chancy.push_many(jobs, within=within, validate=validate)

    yield _Transaction(bind(within), push, schema)


def blocking_transaction(chancy: Pushing, within: object, *, validate: bool) -> _Transaction:
    """`transaction` for coroutines that `run_blocking` runs."""

    async def push(jobs: Iterable[Job[Any]]) -> References[Any]:
        return chancy.sync_push_many(jobs, within=within, validate=validate)

    return _Transaction(bind_blocking(within), push, SQL.on(chancy.broker).schema)

"""Pushes batches, and adds jobs to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from chancy.broker.values import Capability
from chancy.context.context import JobContext, current_job
from chancy.errors import LeaseLost, PushError
from chancy.job.definition import Job
from chancy.plugin.runtime import Application
from chancy.plugins.batch.description import MAX_JOBS, Batch, members, shards
from chancy.plugins.batch.outcomes import KEY
from chancy.plugins.batch.store import statement, store_of
from chancy.postgres.drivers.base import Connection
from chancy.postgres.within import bind, bind_sync
from chancy.results.reference import References

#: Jobs of one statement that adds them to a batch.
_SLICE = 5_000

Statement = tuple[str, list[object]]


class Pushing(Application, Protocol):
    """An application that pushes many jobs: a `chancy.app.Chancy`."""

    async def push_many(
        self, jobs: Iterable[Job[Any]], *, within: object | None = None, validate: bool = True
    ) -> References[Any]: ...

    def transaction(self) -> AbstractAsyncContextManager[Connection]: ...


class SyncPushing(Application, Protocol):
    """`Pushing` for code without an event loop."""

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


class _Members:
    """The statements that add jobs pushed in the transaction to a batch."""

    def __init__(self, id: UUID, schema: str) -> None:
        self._id = id
        self._schema = schema

    def join_statements(self, pushed: References[Any]) -> Iterator[Statement]:
        ids = [reference.id for reference in pushed]
        for at in range(0, len(ids), _SLICE):
            yield statement("join", self._schema), [self._id, ids[at : at + _SLICE]]


class Push:
    """A batch to push.

    :raises PushError: a callback cannot be stored.
    """

    def __init__(
        self, chancy: Application, batch: Batch, jobs: Iterable[Job[Any]], *, validate: bool
    ) -> None:
        self._schema = store_of(chancy.broker).schema
        self._batch = batch
        self._callbacks = batch.callbacks(chancy.registry if validate else None, chancy.max_payload)
        self._validate = validate
        self._members = _Members(batch.id, self._schema)
        self._jobs = members(jobs, batch.id, batch.name, MAX_JOBS)

    def _begin_statement(self) -> Statement:
        batch = self._batch
        return statement("begin", self._schema), [
            batch.id, batch.name, batch.open, *self._callbacks,
        ]  # fmt: skip

    def _seal_statement(self, count: int) -> Statement:
        return statement("seal", self._schema), [
            self._batch.id, count, shards(count, may_grow=self._batch.open),
        ]  # fmt: skip

    async def push(self, chancy: Pushing, within: object | None) -> None:
        """Store the batch, in a transaction of the caller's or one of its own."""
        async with _transaction(chancy, within) as tx:
            fetch = bind(tx)
            sql, parameters = self._begin_statement()
            if not (await fetch(sql, *parameters))[0][0]:
                return
            pushed = await chancy.push_many(self._jobs, within=tx, validate=self._validate)
            joined = 0
            for sql, parameters in self._members.join_statements(pushed):
                joined += (await fetch(sql, *parameters))[0][0]
            sql, parameters = self._seal_statement(joined)
            await fetch(sql, *parameters)

    def push_sync(self, chancy: SyncPushing, within: object) -> None:
        """`push` for blocking code."""
        fetch = bind_sync(within)
        sql, parameters = self._begin_statement()
        if not fetch(sql, *parameters)[0][0]:
            return
        pushed = chancy.sync_push_many(self._jobs, within=within, validate=self._validate)
        joined = 0
        for sql, parameters in self._members.join_statements(pushed):
            joined += fetch(sql, *parameters)[0][0]
        sql, parameters = self._seal_statement(joined)
        fetch(sql, *parameters)


class Addition:
    """Jobs to add to a batch.

    :param here: the running job of the batch that adds them; None: they are added from outside.
    """

    def __init__(
        self, chancy: Application, id: UUID, here: BatchContext | None, jobs: Iterable[Job[Any]]
    ) -> None:
        self._schema = store_of(chancy.broker).schema
        self._id = id
        self._here = here
        self._jobs = jobs
        self._members = _Members(id, self._schema)

    def _admit_statement(self) -> Statement:
        here = self._here
        return statement("admit", self._schema), [
            self._id, here and here.job, here and here.lease,
        ]  # fmt: skip

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
            case "away" if self._here is not None:
                raise PushError(
                    f"{where} by job {self._here.job}: the job is in Redis, whose leases no "
                    "transaction can hold, so a zombie could add jobs, too. A broker with the "
                    f"capability {Capability.SETTLING.value!r} is needed: use a queue in Postgres, "
                    "or an open batch"
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

    def _count_statement(self, count: int) -> Statement:
        return statement("added", self._schema), [self._id, count]

    async def add(self, chancy: Pushing, within: object | None, *, validate: bool) -> int:
        """Store the jobs, and return how many."""
        async with _transaction(chancy, within) as tx:
            fetch = bind(tx)
            sql, parameters = self._admit_statement()
            ((answer, count),) = await fetch(sql, *parameters)
            jobs = self._admitted(answer, int(count))
            pushed = await chancy.push_many(jobs, within=tx, validate=validate)
            joined = 0
            for sql, parameters in self._members.join_statements(pushed):
                joined += (await fetch(sql, *parameters))[0][0]
            if joined:
                sql, parameters = self._count_statement(joined)
                await fetch(sql, *parameters)
        return joined

    def add_sync(self, chancy: SyncPushing, within: object, *, validate: bool) -> int:
        """`add` for blocking code."""
        fetch = bind_sync(within)
        sql, parameters = self._admit_statement()
        ((answer, count),) = fetch(sql, *parameters)
        jobs = self._admitted(answer, int(count))
        pushed = chancy.sync_push_many(jobs, within=within, validate=validate)
        joined = 0
        for sql, parameters in self._members.join_statements(pushed):
            joined += fetch(sql, *parameters)[0][0]
        if joined:
            sql, parameters = self._count_statement(joined)
            fetch(sql, *parameters)
        return joined


@asynccontextmanager
async def _transaction(chancy: Pushing, within: object | None) -> AsyncGenerator[object]:
    if within is not None:
        yield within
        return
    async with chancy.transaction() as tx:
        yield tx

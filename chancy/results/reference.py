"""References: handles to pushed jobs, their state and their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from queue import SimpleQueue
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload
from uuid import UUID

from chancy.errors import JobCancelled, JobError, JobFailed, UnreadablePayload
from chancy.job.definition import QueuedJob, R_co
from chancy.serialization.sealed import key_of, without_key
from chancy.serialization.signature import Signature
from chancy.states import State
from chancy.text import shown

R = TypeVar("R")


class ReferenceSource(Protocol):
    """The source of a reference's data: the application, `chancy.app.Chancy`."""

    async def get_job(self, id: UUID) -> QueuedJob | None: ...
    async def wait_for(
        self, id: UUID, timeout_s: float | None = None, *, stored: bool = False
    ) -> QueuedJob: ...
    def sync_get_job(self, id: UUID) -> QueuedJob | None: ...
    def sync_wait_for(
        self, id: UUID, timeout_s: float | None = None, *, stored: bool = False
    ) -> QueuedJob: ...
    def sync_begin_wait(
        self, id: UUID, timeout_s: float | None = None, *, stored: bool = False
    ) -> Future[QueuedJob]: ...
    def read_result(self, job: QueuedJob) -> Any: ...


class Reference(Generic[R_co]):
    """A handle to one job. Its id is known before the push commits.

    ``Reference[R]`` refers to a job whose function returns an R. The ``sync_…`` calls are for
    applications used as ``with Chancy(dsn)``.
    """

    __slots__ = ("created", "id", "source", "stored")

    if not TYPE_CHECKING:  # as in `Job`
        __class_getitem__ = classmethod(GenericAlias)

    def __init__(
        self, id: UUID, source: ReferenceSource, *, created: bool = True, stored: bool = False
    ) -> None:
        self.id = id
        #: False if an existing job held the unique key; the reference is to that job. True if only
        #: the id of the job exists: the push may be a repetition.
        self.created = created
        #: Whether the job is known to have been stored: its push has returned, and was not part of
        #: a transaction of the caller. Waits for such a job raise if it is missing.
        self.stored = stored
        #: The application that is queried.
        self.source = source

    def __repr__(self) -> str:
        return f"Reference({self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def get(self) -> QueuedJob | None:
        """Return the job now; None if it does not exist (not committed, pruned, or not kept)."""
        return await self.source.get_job(self.id)

    async def status(self) -> State | None:
        """Return the state of the job now; None if it does not exist."""
        found = await self.get()
        return None if found is None else found.state

    async def wait(self, timeout_s: float | None = None) -> QueuedJob:
        """Wait until the job is finished, and return it.

        A notification ends the wait; see `CompletionWaiter`. All waits of an application share one
        session. The job need not exist yet, unless `stored`.

        :raises WaitTimeout: it did not finish within ``timeout_s`` seconds. It keeps running.
        :raises JobError: the job is gone, because its queue does not keep finished jobs, or because
            it was pruned or deleted. If it is missing and not `stored`, the wait continues.
        :raises BrokerError: the store was unavailable at the start. Later outages only delay the
            wait.
        """
        return await self.source.wait_for(self.id, timeout_s, stored=self.stored)

    async def result(self, timeout_s: float | None = None) -> R_co:
        """Wait until the job is finished, and return its result.

        If the function is loaded in this process, the stored JSON is converted by its return
        annotation; otherwise the JSON value is returned. Nothing is imported.

        :raises InvalidResult: the stored result does not fit the annotation in this process.
        :raises UnreadablePayload: it is encrypted with a key that the application does not have.
        :raises JobFailed: it failed for good; the error has its type, message and trace.
        :raises JobCancelled: it was cancelled.
        :raises WaitTimeout: as for `wait`.
        :raises JobError: as for `wait`.
        :raises BrokerError: as for `wait`.
        """
        result: R_co = self.source.read_result(await self.wait(timeout_s))
        return result

    def sync_get(self) -> QueuedJob | None:
        """`get` for code without an event loop."""
        return self.source.sync_get_job(self.id)

    def sync_wait(self, timeout_s: float | None = None) -> QueuedJob:
        """`wait` for code without an event loop."""
        return self.source.sync_wait_for(self.id, timeout_s, stored=self.stored)

    def sync_result(self, timeout_s: float | None = None) -> R_co:
        """`result` for code without an event loop."""
        result: R_co = self.source.read_result(self.sync_wait(timeout_s))
        return result


def reference_to(
    id: UUID, stand_ins: Mapping[UUID, UUID], source: ReferenceSource, *, stored: bool
) -> Reference[Any]:
    """Return the reference for the push of one job, from the return value of `Broker.push`."""
    return Reference(stand_ins.get(id, id), source, created=id not in stand_ins, stored=stored)


def _checked_all(references: Iterable[Reference[R]]) -> list[Reference[R]]:
    """The references as a list, or `TypeError` if one of them is something else."""
    found = list(references)
    for reference in found:
        given: object = reference
        if not isinstance(given, Reference):
            raise TypeError(
                f"{shown(given)} of the type {type(given).__name__} is not a Reference: pass what "
                "push and push_many return, or Reference(id, chancy) for an id"
            )
    return found


def checked(id: UUID, what: str = "job") -> UUID:
    """Return the id, or raise `TypeError` if it is not a `UUID`.

    A string is rejected even if it is an id: drivers accept it, but their rows have UUIDs, which
    are not equal to it.

    :param what: the kind of object that the id belongs to, in one word, for the error.
    """
    if not isinstance(id, UUID):
        raise TypeError(
            f"the id of a {what} must be a uuid.UUID, not {shown(id)} of the type "
            f"{type(id).__name__}: convert a string with UUID(...)"
        )
    return id


def result_of(job: QueuedJob, signature: Signature | None = None) -> Any:
    """Return the result of a finished job; without a signature, as a JSON value.

    :raises InvalidResult: the result does not fit the signature.
    :raises UnreadablePayload: the result is encrypted.
    :raises JobFailed: the job failed for good.
    :raises JobCancelled: the job was cancelled.
    :raises JobError: the job is not finished.
    """
    match job.state:
        case State.SUCCEEDED:
            if signature is None or job.result is None:
                if (key := key_of(job.result)) is not None:
                    raise UnreadablePayload(f"job {job.id}: {without_key('result is', key)}")
                return job.result
            return signature.read_result(job.result)
        case State.FAILED:
            last = job.errors[-1] if job.errors else {}
            raise JobFailed(job.id, job.func, last)
        case State.CANCELLED:
            last = job.errors[-1] if job.errors else {}
            raise JobCancelled(f"job {job.id} was cancelled: {last.get('message') or 'no reason'}")
        case _:
            raise JobError(f"job {job.id} is {job.state.label}: it has no result yet")


class References(Sequence[Reference[R_co]]):
    """The references of a bulk push, in push order, stored in 16 bytes each.

    A million `Reference` objects would take about 200 MB.
    """

    def __init__(self, source: ReferenceSource, *, stored: bool = False) -> None:
        self._ids = bytearray()
        self._existing: set[int] = set()
        # Where the jobs of the latest transaction begin.
        self._latest = 0
        self._source = source
        self._stored = stored

    def extend(self, ids: Sequence[UUID]) -> None:
        self._ids += b"".join([id.bytes for id in ids])

    def adds(self, id: UUID) -> bool:
        """Whether a job that was added since the last `replace` has this id."""
        latest = range(self._latest * 16, len(self._ids), 16)
        return any(bytes(self._ids[at : at + 16]) == id.bytes for at in latest)

    def replace(self, stand_ins: Mapping[UUID, UUID]) -> None:
        """Replace jobs that were not stored by the existing jobs that hold their unique keys.

        Only considers jobs that were added since the last call.
        """
        if stand_ins:
            for at in range(self._latest, len(self)):
                found = stand_ins.get(UUID(bytes=bytes(self._ids[at * 16 : at * 16 + 16])))
                if found is not None:
                    self._ids[at * 16 : at * 16 + 16] = found.bytes
                    self._existing.add(at)
        self._latest = len(self)

    def __len__(self) -> int:
        return len(self._ids) // 16

    @overload
    def __getitem__(self, index: int) -> Reference[R_co]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Reference[R_co]]: ...
    def __getitem__(self, index: int | slice) -> Reference[R_co] | list[Reference[R_co]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        id = UUID(bytes=bytes(self._ids[at * 16 : at * 16 + 16]))
        created = at not in self._existing
        return Reference(id, self._source, created=created, stored=self._stored)


async def gather(references: Iterable[Reference[R]], timeout_s: float | None = None) -> list[R]:
    """Wait for jobs, and return their results in the order of the references.

    :raises JobError: the error of the first job that does not succeed, at once; the other jobs
        keep running.
    :raises WaitTimeout: not all of them finished within ``timeout_s`` seconds.
    """
    tasks = [
        asyncio.create_task(reference.result(timeout_s)) for reference in _checked_all(references)
    ]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def as_completed(
    references: Iterable[Reference[R]], timeout_s: float | None = None
) -> AsyncIterator[Reference[R]]:
    """Yield the references of jobs in the order in which the jobs finish, each once.

        async for reference in as_completed(references):
            print(await reference.result())

    :raises WaitTimeout: not all of them finished within ``timeout_s`` seconds.
    """
    waiting = {
        asyncio.create_task(reference.wait(timeout_s)): reference
        for reference in _checked_all(references)
    }
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                reference = waiting.pop(task)
                task.result()
                yield reference
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def sync_gather(references: Iterable[Reference[R]], timeout_s: float | None = None) -> list[R]:
    """`gather` for code without an event loop.

    Waits for all of them concurrently, in the application's background thread.
    """
    awaited = _checked_all(references)
    results: dict[int, R] = {}
    with closing(_sync_completions(awaited, timeout_s)) as completions:
        for at, job in completions:
            results[at] = awaited[at].source.read_result(job)
    return [results[at] for at in range(len(awaited))]


def sync_as_completed(
    references: Iterable[Reference[R]], timeout_s: float | None = None
) -> Generator[Reference[R]]:
    """`as_completed` for code without an event loop.

        for reference in sync_as_completed(references):
            print(reference.sync_result())

    The waits start with the first iteration. To stop early, call ``close()`` on the iterator or
    drop it, which cancels the remaining waits.
    """
    awaited = _checked_all(references)
    with closing(_sync_completions(awaited, timeout_s)) as completions:
        for at, _ in completions:
            yield awaited[at]


def _sync_completions(
    awaited: Sequence[Reference[Any]], timeout_s: float | None
) -> Generator[tuple[int, QueuedJob]]:
    """Yield the jobs as they finish, each with the index of its reference."""
    waits: dict[Future[QueuedJob], int] = {}
    finished: SimpleQueue[Future[QueuedJob]] = SimpleQueue()  # in order, unlike `as_completed`
    try:
        for at, each in enumerate(awaited):
            wait = each.source.sync_begin_wait(each.id, timeout_s, stored=each.stored)
            waits[wait] = at
            wait.add_done_callback(finished.put)
        for _ in awaited:
            wait = finished.get()
            yield waits[wait], wait.result()
    finally:
        for wait in waits:
            wait.cancel()

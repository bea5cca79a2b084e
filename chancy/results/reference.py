"""Handles to jobs that were pushed, and what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from queue import SimpleQueue
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, overload
from uuid import UUID

from chancy.errors import JobCancelled, JobError, JobFailed
from chancy.job.definition import QueuedJob, R_co
from chancy.serialization.signature import Signature
from chancy.states import State
from chancy.text import shown

R = TypeVar("R")


class ReferenceSource(Protocol):
    """Where handles look: the application, `chancy.app.Chancy`."""

    async def get_job(self, id: UUID) -> QueuedJob | None: ...
    async def wait_for(self, id: UUID, timeout_s: float | None = None) -> QueuedJob: ...
    def sync_get_job(self, id: UUID) -> QueuedJob | None: ...
    def sync_wait_for(self, id: UUID, timeout_s: float | None = None) -> QueuedJob: ...
    def sync_begin_wait(self, id: UUID, timeout_s: float | None = None) -> Future[QueuedJob]: ...
    def read_result(self, job: QueuedJob) -> Any: ...


class Reference(Generic[R_co]):
    """A handle to one job. Its id is known before the push commits.

    ``Reference[R]`` is to a job whose function returns an R. The ``sync_…`` calls are for
    applications that are used ``with Chancy(dsn)``.
    """

    __slots__ = ("created", "id", "source")

    if not TYPE_CHECKING:  # as in `Job`
        __class_getitem__ = classmethod(GenericAlias)

    def __init__(self, id: UUID, source: ReferenceSource, *, created: bool = True) -> None:
        self.id = id
        #: False: the push met a job with the same unique key, and this is that one.
        self.created = created
        #: The application that is asked.
        self.source = source

    def __repr__(self) -> str:
        return f"Reference({self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def get(self) -> QueuedJob | None:
        """The job as it is now; None if there is none (not committed, pruned, or not kept)."""
        return await self.source.get_job(self.id)

    async def status(self) -> State | None:
        """The state of the job now; None if there is none."""
        found = await self.get()
        return None if found is None else found.state

    async def wait(self, timeout_s: float | None = None) -> QueuedJob:
        """Wait until the job is finished, and give it as it ended.

        A notice wakes; see `CompletionWaiter`. However many wait in one application,
        they share one session. A job that is not there yet is waited for.
        :raises WaitTimeout: it was not finished within ``timeout_s`` seconds. It goes on.
        :raises JobError: it was there and is gone: its queue does not keep finished jobs.
        :raises BrokerError: the store was away at the beginning. Later outages are outlasted.
        """
        return await self.source.wait_for(self.id, timeout_s)

    async def result(self, timeout_s: float | None = None) -> R_co:
        """Wait until the job is finished, and give what its function returned.

        Where this process has the function, its annotation says what is made of the stored JSON;
        otherwise the JSON is given as it is. Nothing is imported for it.
        :raises InvalidResult: what is stored does not fit the annotation as it is here.
        :raises JobFailed: it failed for good. Has the type, the message and the trace.
        :raises JobCancelled: it was cancelled.
        :raises WaitTimeout, JobError, BrokerError: as `wait` does.
        """
        result: R_co = self.source.read_result(await self.wait(timeout_s))
        return result

    def sync_get(self) -> QueuedJob | None:
        """`get` for code without an event loop."""
        return self.source.sync_get_job(self.id)

    def sync_wait(self, timeout_s: float | None = None) -> QueuedJob:
        """`wait` for code without an event loop."""
        return self.source.sync_wait_for(self.id, timeout_s)

    def sync_result(self, timeout_s: float | None = None) -> R_co:
        """`result` for code without an event loop."""
        result: R_co = self.source.read_result(self.sync_wait(timeout_s))
        return result


def reference_to(
    id: UUID, stand_ins: Mapping[UUID, UUID], source: ReferenceSource
) -> Reference[Any]:
    """What the push of one job gives, by the answer of `Broker.push`."""
    return Reference(stand_ins.get(id, id), source, created=id not in stand_ins)


def checked(id: UUID, what: str = "job") -> UUID:
    """The id of something that somebody asks for.

    Text is refused, even of an id: drivers take it, and what they give is then not found by it.
    :param what: whose id it is, in one word.
    :raises TypeError: it is no `UUID`.
    """
    if not isinstance(id, UUID):
        raise TypeError(
            f"the id of a {what} is a uuid.UUID, and {shown(id)} is of the type "
            f"{type(id).__name__}: of the text of an id UUID(text) makes one"
        )
    return id


def result_of(job: QueuedJob, signature: Signature | None = None) -> Any:
    """What the function of a finished job returned, as JSON has it if there is no signature.

    :raises InvalidResult: it does not fit the signature.
    :raises JobFailed, JobCancelled: it did not.
    :raises JobError: it is not finished.
    """
    match job.state:
        case State.SUCCEEDED:
            if signature is None or job.result is None:
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
    """The handles of a bulk push, in push order, at 16 bytes each.

    A million `Reference` objects would take about 200 MB.
    """

    def __init__(self, source: ReferenceSource) -> None:
        self._ids = bytearray()
        self._met: set[int] = set()
        self._source = source

    def extend(self, ids: Sequence[UUID]) -> None:
        self._ids += b"".join([id.bytes for id in ids])

    def replace(self, stand_ins: Mapping[UUID, UUID]) -> None:
        """Put the jobs that have the unique keys in the places of those that were not stored."""
        if stand_ins:
            for at in range(len(self)):
                found = stand_ins.get(UUID(bytes=bytes(self._ids[at * 16 : at * 16 + 16])))
                if found is not None:
                    self._ids[at * 16 : at * 16 + 16] = found.bytes
                    self._met.add(at)

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
        return Reference(id, self._source, created=at not in self._met)


async def gather(references: Iterable[Reference[R]], timeout_s: float | None = None) -> list[R]:
    """The results of jobs, in the order of their references.

    :raises JobFailed, JobCancelled, …: what the first of them to end badly raises, at once; the
        others go on.
    :raises WaitTimeout: not all of them were finished within ``timeout_s`` seconds.
    """
    tasks = [asyncio.create_task(one.result(timeout_s)) for one in references]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    task.exception()  # looked at, so that nobody reports it


async def as_completed(
    references: Iterable[Reference[R]], timeout_s: float | None = None
) -> AsyncIterator[Reference[R]]:
    """The references of jobs as they finish, the first one first; each once.

        async for reference in as_completed(references):
            print(await reference.result())

    :raises WaitTimeout: not all of them were finished within ``timeout_s`` seconds.
    """
    waiting = {asyncio.create_task(one.wait(timeout_s)): one for one in references}
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
        if waiting:
            await asyncio.wait(waiting)


def sync_gather(references: Iterable[Reference[R]], timeout_s: float | None = None) -> list[R]:
    """`gather` for code without an event loop.

    All are waited for at once, in the thread that the application has for that.
    """
    asked = list(references)
    results: dict[int, R] = {}
    with closing(_sync_ends(asked, timeout_s)) as ends:
        for at, job in ends:
            results[at] = asked[at].source.read_result(job)
    return [results[at] for at in range(len(asked))]


def sync_as_completed(
    references: Iterable[Reference[R]], timeout_s: float | None = None
) -> Generator[Reference[R]]:
    """`as_completed` for code without an event loop.

        for reference in sync_as_completed(references):
            print(reference.sync_result())

    The waits begin with the first step. Who stops earlier ends those that are left by ``close()``,
    or by dropping the last name of the iterator.
    """
    asked = list(references)
    with closing(_sync_ends(asked, timeout_s)) as ends:
        for at, _ in ends:
            yield asked[at]


def _sync_ends(
    asked: Sequence[Reference[Any]], timeout_s: float | None
) -> Generator[tuple[int, QueuedJob]]:
    """The jobs as they end, each with the place of its reference."""
    waits: list[Future[QueuedJob]] = []
    ended: SimpleQueue[int] = SimpleQueue()  # at most one entry for each reference

    def begin(at: int, one: Reference[Any]) -> None:
        wait = one.source.sync_begin_wait(one.id, timeout_s)
        waits.append(wait)
        wait.add_done_callback(lambda _: ended.put(at))

    try:
        for at, one in enumerate(asked):
            begin(at, one)
        for _ in asked:
            at = ended.get()
            yield at, waits[at].result()
    finally:
        for wait in waits:
            wait.cancel()

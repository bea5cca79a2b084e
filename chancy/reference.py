"""Handles to jobs that were pushed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import TYPE_CHECKING, Generic, overload
from uuid import UUID

from chancy.clock import Clock
from chancy.errors import JobError, WaitTimeout
from chancy.job import QueuedJob, R_co
from chancy.states import State

Fetch = Callable[[UUID], Awaitable[QueuedJob | None]]


@dataclass(frozen=True, slots=True, eq=False)
class Reference(Generic[R_co]):
    """A handle to one job. Its id is known before the push commits.

    ``Reference[R]`` is to a job whose function returns an R.
    """

    id: UUID
    fetch: Fetch
    clock: Clock

    if not TYPE_CHECKING:  # as in `Job`
        __class_getitem__ = classmethod(GenericAlias)

    def __repr__(self) -> str:
        return f"Reference({self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    async def get(self) -> QueuedJob | None:
        """The job as it is now; None if there is none (not committed, pruned, or not kept)."""
        return await self.fetch(self.id)

    async def status(self) -> State | None:
        """The state of the job now; None if there is none."""
        found = await self.get()
        return None if found is None else found.state

    async def wait(self, timeout_s: float | None = None) -> QueuedJob:
        """Wait until the job is finished.

        Looks every 20 ms at first and every half second in the end.
        :raises WaitTimeout: it was not finished within ``timeout_s`` seconds. It goes on.
        :raises JobError: it was there and is gone: its queue does not keep finished jobs.
        """
        began = self.clock.monotonic()
        pause = 0.02
        seen = False
        while True:
            found = await self.get()
            if found is not None and found.state.final:
                return found
            if found is None and seen:
                raise JobError(
                    f"job {self.id} is gone: its queue does not keep finished jobs, so what "
                    "became of it cannot be known"
                )
            seen = seen or found is not None
            waited = self.clock.monotonic() - began
            if timeout_s is not None and waited + pause > timeout_s:
                state = "not there" if found is None else found.state.label
                raise WaitTimeout(f"job {self.id} is {state} after {waited:.1f} s")
            await self.clock.sleep(pause)
            pause = min(pause * 1.5, 0.5)


class References(Sequence[Reference[R_co]]):
    """The handles of a bulk push, in push order, at 16 bytes each.

    A million `Reference` objects would take about 200 MB.
    """

    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._ids = bytearray()
        self._fetch = fetch
        self._clock = clock

    def extend(self, ids: Sequence[UUID]) -> None:
        self._ids += b"".join([id.bytes for id in ids])

    def __len__(self) -> int:
        return len(self._ids) // 16

    @overload
    def __getitem__(self, index: int) -> Reference[R_co]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Reference[R_co]]: ...
    def __getitem__(self, index: int | slice) -> Reference[R_co] | list[Reference[R_co]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index] * 16
        id = UUID(bytes=bytes(self._ids[place : place + 16]))
        return Reference(id, self._fetch, self._clock)

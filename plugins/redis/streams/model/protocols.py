"""What the parts of streams agree on: how records become fields, and who stands around events.

From the user's record to the log is the work of `Coding` and `Route`; from the log to the user's
function and back to the acknowledgement that of the engine, which sees nothing else of a record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from chancy.plugins.redis.streams.model.event import Event

R = TypeVar("R")
Routed = TypeVar("Routed", contravariant=True)

#: What a middleware sees: one event, or all of a batch if the processor takes batches.
Item = Event[Any] | list[Event[Any]]


class Coding(Protocol[R]):
    """Turns a record into the fields of an entry and back. Pure, and safe in any thread."""

    @property
    def name(self) -> str:
        """Kept with the stream, for people and for a reader of another version."""
        ...

    def encode(self, record: R) -> Sequence[bytes]:
        """Give name, value, name, value … as the entry will hold them.

        :raises ChancyError: the record cannot be stored.
        """
        ...

    def decode(self, fields: Sequence[bytes]) -> R:
        """Make the record of the fields that `encode` gave.

        Whatever it raises is a failure of the processor, and its policy decides.
        """
        ...


class Route(Protocol[Routed]):
    """Says to which partition a record belongs."""

    @property
    def name(self) -> str:
        """The hasher, as it is kept with the stream: it must never change its mind."""
        ...

    def partition(self, record: Routed, partitions: int) -> int:
        """The number of the partition, from 0; the same for records of one key."""
        ...


@dataclass(frozen=True, slots=True)
class MiddlewareContext:
    """Where a middleware runs."""

    stream: str
    processor: str
    partition: int


class Middleware(Protocol):
    """Stands between the log and a processor. Only for processors of the mode ``async``."""

    def handler(self, parent: AsyncIterator[Item], place: MiddlewareContext) -> AsyncIterator[Item]:
        """Wrap the items of one partition: an async generator, begun anew with each run.

        An item is acknowledged when the processor asks for the next one: that comes back to the
        ``yield``. If the processor fails, its exception is raised at the ``yield``; let it pass.
        If the run is merely interrupted, by a rebalance or the end of the worker, the generator is
        closed. Items that are left out are acknowledged with the next one that is not.

        What it raises while it handles a failure replaces the policy: nothing is acknowledged,
        and the partition starts again after a back-off.
        """
        ...

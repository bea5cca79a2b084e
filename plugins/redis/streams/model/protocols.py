"""The contracts between the parts of streams: record codings, routes and middleware.

`Coding` and `Route` turn a record into an entry of a log. The engine, from the log to the processor
and the acknowledgement, uses nothing else of a record.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from chancy.plugins.redis.streams.model.event import Event

R = TypeVar("R")
Routed = TypeVar("Routed", contravariant=True)

#: An item of a middleware: one event, or one batch if the processor takes batches.
Item = Event[Any] | list[Event[Any]]


class Coding(Protocol[R]):
    """Encodes a record as the fields of an entry and back. Pure and thread-safe."""

    @property
    def name(self) -> str:
        """The name stored with the stream, for inspection and for readers of another version."""
        ...

    def encode(self, record: R) -> Sequence[bytes]:
        """Return name, value, name, value … as the entry stores them.

        :raises ChancyError: the record cannot be stored.
        """
        ...

    def decode(self, fields: Sequence[bytes]) -> R:
        """Return the record of the fields that `encode` returned.

        An exception is a failure of the processor, to which its policy applies.
        """
        ...


class Route(Protocol[Routed]):
    """Maps a record to its partition."""

    @property
    def name(self) -> str:
        """The name of the hasher, stored with the stream: its results must never change."""
        ...

    def partition(self, record: Routed, partitions: int) -> int:
        """Return the number of the partition, from 0; records with one key share a partition."""
        ...


@dataclass(frozen=True, slots=True)
class MiddlewareContext:
    """The stream, processor and partition in which a middleware runs."""

    stream: str
    processor: str
    partition: int


class Middleware(Protocol):
    """Wraps the items between the log and a processor. Only for processors of mode ``async``."""

    def handler(self, parent: AsyncIterator[Item], place: MiddlewareContext) -> AsyncIterator[Item]:
        """Wrap the items of one partition: an async generator, created again for each run.

        An item is acknowledged when the processor requests the next one, which resumes the
        ``yield``. If the processor fails, its exception is raised at the ``yield``; let it pass.
        If the run is only interrupted, by a rebalance or a shutdown, the generator is closed.
        Items that are not yielded are acknowledged with the next item that is.

        An exception raised while handling a failure replaces the policy: nothing is acknowledged,
        and the partition restarts after a back-off.
        """
        ...

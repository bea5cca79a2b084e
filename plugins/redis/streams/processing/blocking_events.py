"""Iteration over the events of a partition for plain functions, in a thread or a child process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.processing.events import check_batch

R = TypeVar("R")
T = TypeVar("T")


class EventSource(Protocol[R]):
    """The source of a partition's events: an `OwnedPartition`, or its proxy in a child process."""

    buffer: deque[Event[R]]
    taken: deque[Event[R]]

    @property
    def number(self) -> int: ...
    @property
    def over(self) -> bool: ...
    def finish(self) -> None: ...
    def widen(self, wanted: int) -> None: ...
    def filled_blocking(self, wanted: int = 1, timeout_s: float | None = None) -> bool: ...


class BlockingEvents(Generic[R]):
    """The events of one partition, in order: ``for event in events``. See `Events`."""

    def __init__(self, source: EventSource[R], *, grace_s: float) -> None:
        self._source = source
        self._grace_s = grace_s

    @property
    def partition(self) -> int:
        """The number of the partition."""
        return self._source.number

    def __iter__(self) -> Iterator[Event[R]]:
        return self.single(_same)

    def records(self) -> BlockingRecords[R]:
        """The records of the events."""
        return BlockingRecords(self)

    def take(self, most: int, *, within: float) -> BlockingBatches[R, Event[R]]:
        """Iterate in non-empty batches, each acknowledged as a whole; see `Events.take`."""
        check_batch(most, within, self._grace_s)
        return BlockingBatches(self, most, within, _same)

    # For the other classes of this module.

    def single(self, make: Callable[[Event[R]], T]) -> Iterator[T]:
        """Return an iterator over what ``make`` returns for each event."""
        return _singles(self._source, make)

    def batched(self, most: int, within: float, make: Callable[[Event[R]], T]) -> Iterator[list[T]]:
        """Return the iterator of `BlockingBatches`."""
        self._source.widen(most)
        return _batches(self._source, most, within, make)


class BlockingRecords(Generic[R]):
    """The records of a partition, in order."""

    def __init__(self, events: BlockingEvents[R]) -> None:
        self._events = events

    def __iter__(self) -> Iterator[R]:
        return self._events.single(Event.record)

    def take(self, most: int, *, within: float) -> BlockingBatches[R, R]:
        """Iterate in batches of records; see `Events.take`."""
        return self._events.take(most, within=within).records()


class BlockingBatches(Generic[R, T]):
    """Batches of events, or of their records; see `EventBatches`."""

    def __init__(
        self, events: BlockingEvents[R], most: int, within: float, make: Callable[[Event[R]], T]
    ) -> None:
        self._events = events
        self._most = most
        self._within = within
        self._make = make

    def __iter__(self) -> Iterator[list[T]]:
        return self._events.batched(self._most, self._within, self._make)

    def records(self) -> BlockingBatches[R, R]:
        """The records of the batches."""
        return BlockingBatches(self._events, self._most, self._within, Event.record)


def _same(event: Event[R]) -> Event[R]:
    return event


def _singles(source: EventSource[R], make: Callable[[Event[R]], T]) -> Iterator[T]:
    buffer, taken = source.buffer, source.taken
    while True:
        if not buffer and not source.filled_blocking():
            return
        if source.over:
            return
        event = buffer.popleft()
        taken.append(event)
        yield make(event)
        source.finish()


def _batches(
    source: EventSource[R], most: int, within: float, make: Callable[[Event[R]], T]
) -> Iterator[list[T]]:
    buffer = source.buffer
    while True:
        if not buffer and not source.filled_blocking():
            return
        if len(buffer) < most:
            source.filled_blocking(most, within)
        if source.over:
            return
        batch = [buffer.popleft() for _ in range(min(most, len(buffer)))]
        source.taken.extend(batch)
        yield [make(event) for event in batch]
        source.finish()

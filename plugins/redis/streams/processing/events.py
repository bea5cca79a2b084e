"""Iteration over the events of a partition for async processors, one by one or in batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from chancy.clock import is_being_cancelled
from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.model.event import Event
from chancy.plugins.redis.streams.model.protocols import Middleware, MiddlewareContext
from chancy.plugins.redis.streams.processing.cancellation import Escaped
from chancy.plugins.redis.streams.processing.failures import contained
from chancy.plugins.redis.streams.processing.partition import OwnedPartition

R = TypeVar("R")
T = TypeVar("T")

#: Events that a processor takes before it yields to the event loop.
_TURN = 32
#: Maximum consecutive events that a middleware may skip.
_MOST_LEFT_OUT = 100_000
#: Maximum events of a batch.
MAX_BATCH = 10_000


class Chain:
    """The generators of one run, closed in order when it ends."""

    def __init__(self, middleware: Sequence[Middleware], place: MiddlewareContext) -> None:
        self._middleware = middleware
        self._place = place
        self._open: list[AsyncGenerator[Any, None]] = []

    @property
    def bare(self) -> bool:
        """Whether there is no middleware."""
        return not self._middleware

    def track(self, generator: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """Register a generator; the last one is the closest to the processor."""
        self._open.append(generator)
        return generator

    def wrap(self, source: AsyncGenerator[Any, None]) -> AsyncIterator[Any]:
        """Wrap a source in the middleware; the first one is the closest to the log."""
        items: AsyncIterator[Any] = self.track(source)
        for middleware in self._middleware:
            items = middleware.handler(items, self._place)
            self.track(cast("AsyncGenerator[Any, None]", items))
        return items

    async def close(self, error: Exception | None) -> None:
        """Close the generators, starting at the processor.

        :param error: the failure of the processor, raised in each middleware.
        :raises Exception: another error that a middleware raised while handling the failure.
        """
        instead: Exception | None = None
        while self._open:
            generator = self._open.pop()
            try:
                if error is None or not self._middleware or not self._open:
                    await generator.aclose()
                else:
                    await _throw(generator, error)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                instead = instead or Escaped("a middleware")
            except GeneratorExit:
                raise
            except BaseException as raised:
                if raised is not error:
                    instead = instead or contained(raised, "a middleware")
        if instead is not None:
            raise instead


async def _throw(generator: AsyncGenerator[Any, None], error: Exception) -> None:
    try:
        await generator.athrow(error)
    except StopAsyncIteration:
        return
    finally:
        await generator.aclose()


class Events(Generic[R]):
    """The events of one partition, in order: ``async for event in events``.

    An event is acknowledged when the next one is requested. The iteration ends when the partition
    is released or the worker stops; return then. Use one of the four ways to iterate, once.
    """

    def __init__(
        self,
        partition: OwnedPartition[R],
        chain: Chain,
        *,
        grace_s: float,
    ) -> None:
        self._partition = partition
        self._chain = chain
        self._grace_s = grace_s

    @property
    def partition(self) -> int:
        """The number of the partition."""
        return self._partition.number

    def __aiter__(self) -> AsyncIterator[Event[R]]:
        return self.single(_same)

    def records(self) -> Records[R]:
        """The records of the events."""
        return Records(self)

    def take(self, most: int, within: float) -> EventBatches[R, Event[R]]:
        """Iterate in non-empty batches, each acknowledged as a whole.

        :param most: maximum events of a batch, 1 to 10,000. They wait in memory.
        :param within: seconds after its first event at which a batch is returned even if it is not
            full; at most the grace period.
        """
        check_batch(most, within, self._grace_s)
        return EventBatches(self, most, within, _same)

    # For the other classes of this module.

    def single(self, make: Callable[[Event[R]], T]) -> AsyncIterator[T]:
        """Return an iterator over what ``make`` returns for each event."""
        if self._chain.bare:
            return self._chain.track(_singles(self._partition, make))
        raw = self._chain.wrap(_raw(self._partition))
        return self._chain.track(_passed(self._partition, raw, make))

    def batched(
        self, most: int, within: float, make: Callable[[Event[R]], T]
    ) -> AsyncIterator[list[T]]:
        """Return the iterator of `EventBatches`."""
        self._partition.widen(most)
        raw = self._chain.wrap(_batches(self._partition, most, within))
        return self._chain.track(
            _passed(self._partition, raw, lambda batch: [make(event) for event in batch])
        )


class Records(Generic[R]):
    """The records of a partition, in order."""

    def __init__(self, events: Events[R]) -> None:
        self._events = events

    def __aiter__(self) -> AsyncIterator[R]:
        return self._events.single(Event.record)

    def take(self, most: int, within: float) -> EventBatches[R, R]:
        """Iterate in batches of records; see `Events.take`."""
        return self._events.take(most, within=within).records()


class EventBatches(Generic[R, T]):
    """Batches of events, or of their records.

    :param make: returns an item of a batch.
    """

    def __init__(
        self, events: Events[R], most: int, within: float, make: Callable[[Event[R]], T]
    ) -> None:
        self._events = events
        self._most = most
        self._within = within
        self._make = make

    def __aiter__(self) -> AsyncIterator[list[T]]:
        return self._events.batched(self._most, self._within, self._make)

    def records(self) -> EventBatches[R, R]:
        """The records of the batches."""
        return EventBatches(self._events, self._most, self._within, Event.record)


def check_batch(most: int, within: float, grace_s: float) -> None:
    """Raise `ConfigurationError` unless size and delay of batches are valid."""
    if not 1 <= most <= MAX_BATCH:
        raise ConfigurationError(f"take({most}): a batch must have 1 to {MAX_BATCH:,} events")
    if not 0 <= within <= grace_s:
        raise ConfigurationError(
            f"take(within={within:g}) must be from 0 to the grace period, {grace_s:g} s: "
            "a partition is not released before its batch is done"
        )


def _same(event: Event[R]) -> Event[R]:
    return event


async def _singles(
    partition: OwnedPartition[R], make: Callable[[Event[R]], T]
) -> AsyncGenerator[T, None]:
    """Yield single events without middleware: the fast path."""
    buffer, taken, monotonic = partition.buffer, partition.taken, time.monotonic
    turn = 0
    while True:
        if not buffer and not await partition.filled():
            return
        if partition.closing or monotonic() >= partition.deadline:
            return
        turn += 1
        if turn == _TURN:
            turn = 0
            await asyncio.sleep(0)
            if partition.over:
                return
        event = buffer.popleft()
        taken.append(event)
        yield make(event)
        partition.finish()


async def _raw(partition: OwnedPartition[R]) -> AsyncGenerator[Event[R], None]:
    """Yield single events for middleware; `_passed` acknowledges them."""
    turn = 0
    while True:
        if not partition.buffer and not await partition.filled():
            return
        turn += 1
        if turn % _TURN == 0:
            await asyncio.sleep(0)
        if partition.over:
            return
        event = partition.buffer.popleft()
        partition.taken.append(event)
        if len(partition.taken) > _MOST_LEFT_OUT:
            raise RuntimeError(f"middleware skipped {_MOST_LEFT_OUT:,} events in a row")
        yield event


async def _batches(
    partition: OwnedPartition[R], most: int, within: float
) -> AsyncGenerator[list[Event[R]], None]:
    buffer = partition.buffer
    while True:
        if not buffer and not await partition.filled():
            return
        await partition.filled(most, within)
        await asyncio.sleep(0)
        if partition.over:
            return
        batch = [buffer.popleft() for _ in range(min(most, len(buffer)))]
        partition.taken.extend(batch)
        yield batch


async def _passed(
    partition: OwnedPartition[R], items: AsyncIterator[Any], make: Callable[[Any], T]
) -> AsyncGenerator[T, None]:
    async for item in items:
        yield make(item)
        partition.finish()

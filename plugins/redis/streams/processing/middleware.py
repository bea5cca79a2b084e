"""Middleware between a log and a processor, and `DeadLetterMiddleware`, which stores failed events.

The first of ``middleware=[…]`` is the closest to the log, the last one to the processor. Each gets
single events, or the batches that the processor takes. `protocols.Middleware` is the contract.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from chancy.plugins.redis.streams.encoding.record_coding import RecordCoding
from chancy.plugins.redis.streams.model.protocols import Item, MiddlewareContext
from chancy.plugins.redis.streams.model.record import Record, is_primitive
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.text import shown

R = TypeVar("R")

#: An async generator function that wraps an iterator of items.
Around = Callable[[AsyncIterator[Item], MiddlewareContext], AsyncIterator[Item]]

#: Maximum characters of an error that a dead letter stores.
_MAX_MESSAGE = 2_000


class FunctionMiddleware:
    """A middleware made from an async generator function; created by `middleware`."""

    def __init__(self, function: Around) -> None:
        self._function = function

    def handler(self, parent: AsyncIterator[Item], place: MiddlewareContext) -> AsyncIterator[Item]:
        return self._function(parent, place)

    def __repr__(self) -> str:
        return f"middleware({getattr(self._function, '__qualname__', shown(self._function))})"


def middleware(function: Around) -> FunctionMiddleware:
    """Make a middleware from an async generator function of items and their context.

    Yield each item, or skip it: a skipped item is acknowledged with the next one that is yielded.
    The ``yield`` returns when the item is done, or raises the exception of the processor: let it
    pass. If the run is only interrupted, the generator is closed.
    """
    return FunctionMiddleware(function)


class Dead(Record):
    """A failed event, as `DeadLetterMiddleware` stores it.

    :ivar failed_at: on the clock of the worker, in UTC.
    :ivar xid: the id of the event in its partition.
    :ivar data: its stored fields; ``DeadLetterMiddleware.original`` decodes them.
    :ivar error: type and message of the exception.
    """

    failed_at: datetime
    stream: str
    processor: str
    partition: int
    xid: str
    data: list[bytes]
    error: str = ""


class DeadLetterMiddleware(Generic[R]):
    """A middleware that writes failed events to a separate stream before they are acknowledged.

    It writes every event of a failed batch. If the write fails, as when the sink is full for 30 s,
    nothing is acknowledged and the events are delivered again. Combine it with a policy that
    continues, such as ``Ignore()``. An event may be written twice if a worker dies between the
    write and the acknowledgement, or if only a part of a large batch can be written;
    ``Ignore(keep=True)`` does both atomically, to a log that `chancy dead` shows.

    ``sink`` is that stream, ``dead.<source>``, with one partition; a processor can consume it. Its
    records are `Dead`, or the original records if those of the source are primitive.
    """

    def __init__(self, source: Stream[R]) -> None:
        self._coding = source.coding
        coding: Any = source.coding
        if not (isinstance(coding, RecordCoding) and is_primitive(coding.model)):
            # Any stored event, which takes a third more as base64.
            coding = RecordCoding(Dead, max_bytes=sys.maxsize)
            self._primitive = False
        else:
            self._primitive = True
        options: dict[str, Any] = {"partitions": 1, "size": source.size}
        name = f"dead.{source.name}"
        self.sink: Stream[Any] = Stream(
            name, link=source.link, coding=coding, route=_One(), **options
        )
        # Writes the stored fields of an event, decodable or not.
        self._raw: Stream[Sequence[bytes]] = Stream(
            name, link=source.link, coding=_Fields(coding.name), route=_One(), **options
        )

    async def handler(
        self, parent: AsyncIterator[Item], place: MiddlewareContext
    ) -> AsyncGenerator[Item, None]:
        async for item in parent:
            try:
                yield item
            except Exception as error:
                await self._write(item if isinstance(item, list) else [item], place, error)
                raise

    def original(self, letter: Dead) -> R:
        """Return the record that failed.

        :raises UnreadableRecord: the record cannot be decoded, which is why it failed.
        """
        return self._coding.decode(letter.data)

    async def _write(
        self, events: Sequence[Any], place: MiddlewareContext, error: Exception
    ) -> None:
        now = datetime.now(UTC)
        reason = f"{type(error).__qualname__}: {error}"[:_MAX_MESSAGE]
        entries: list[Sequence[bytes]] = []
        for event in events:
            if self._primitive:
                entries.append(event.fields)
                continue
            letter = Dead(
                failed_at=now,
                stream=place.stream,
                processor=place.processor,
                partition=place.partition,
                xid=event.xid,
                data=list(event.fields),
                error=reason,
            )
            entries.append(self.sink.coding.encode(letter))
        await self._raw.send_many(entries)


class _One:
    """The route of a stream with one partition."""

    name = "one"

    def partition(self, record: object, partitions: int) -> int:
        return 0


class _Fields:
    """The coding of records that are already encoded."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, record: Sequence[bytes]) -> Sequence[bytes]:
        return record

    def decode(self, fields: Sequence[bytes]) -> Sequence[bytes]:
        return fields

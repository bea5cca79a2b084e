"""Middleware: functions that stand between a log and a processor, and one that keeps what failed.

The first of ``middleware=[…]`` stands next to the log, the last next to the processor. Each sees
single events, or the batches that the processor takes. `protocols.Middleware` is the contract.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from chancy.plugins.redis.streams.encoding.record_coding import RecordCoding, coding_of
from chancy.plugins.redis.streams.model.protocols import Item, MiddlewareContext
from chancy.plugins.redis.streams.model.record import Record, is_primitive
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.text import shown

R = TypeVar("R")

#: What a middleware is at its heart: an async generator of items around another one.
Around = Callable[[AsyncIterator[Item], MiddlewareContext], AsyncIterator[Item]]

#: Characters of the message of an error that a dead letter keeps.
_MAX_MESSAGE = 2_000


class FunctionMiddleware:
    """A middleware made of an async generator function; made by `middleware`."""

    def __init__(self, function: Around) -> None:
        self._function = function

    def handler(self, parent: AsyncIterator[Item], place: MiddlewareContext) -> AsyncIterator[Item]:
        return self._function(parent, place)

    def __repr__(self) -> str:
        return f"middleware({getattr(self._function, '__qualname__', shown(self._function))})"


def middleware(function: Around) -> FunctionMiddleware:
    """Make a middleware of an async generator function of the items before it and their place.

    Each item that comes is to be yielded, or left out: it is then acknowledged with the next one
    that is not. The ``yield`` returns once the item is done. It raises what the processor raised:
    let that pass. If the run is only interrupted, the generator is closed.
    """
    return FunctionMiddleware(function)


class Dead(Record):
    """An event that failed, as `DeadLetterMiddleware` keeps it.

    :ivar failed_at: on the clock of the worker, in UTC.
    :ivar xid: the id that the event has in its partition.
    :ivar data: its fields as they are stored; ``original`` of the middleware makes a record of
        them.
    :ivar error: type and message of what was raised.
    """

    failed_at: datetime
    stream: str
    processor: str
    partition: int
    xid: str
    data: list[bytes]
    error: str = ""


class DeadLetterMiddleware(Generic[R]):
    """A middleware that writes what failed to a stream of its own, before it may be acknowledged.

    Of a batch it writes every event. If the write fails, nothing is acknowledged, and the events
    come again. So pair it with a policy that goes on, such as ``Ignore()``; and expect an event
    twice where a worker dies between the write and the acknowledgement. ``Ignore(keep=True)`` does
    both in one step, to a log that `chancy redis stream dead` shows.

    ``sink`` is that stream, ``dead.<source>``, with one partition; a processor may work on it. Its
    records are `Dead`; those of a source with primitive records are what they were.
    """

    def __init__(self, source: Stream[R]) -> None:
        self._coding = source.coding
        coding: Any = source.coding
        if not (isinstance(coding, RecordCoding) and is_primitive(coding.model)):
            coding = coding_of(Dead)
            self._primitive = False
        else:
            self._primitive = True
        options: dict[str, Any] = {"partitions": 1, "size": source.size, "full": "drop_oldest"}
        name = f"dead.{source.name}"
        self.sink: Stream[Any] = Stream(
            name, link=source.link, coding=coding, route=_One(), **options
        )
        # An event that cannot be read is written as it is.
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
        """The record that failed.

        :raises UnreadableRecord: that is why it failed.
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
        await self._raw.send(*entries)


class _One:
    """The route of a stream with one partition."""

    name = "one"

    def partition(self, record: object, partitions: int) -> int:
        return 0


class _Fields:
    """The coding of what is encoded already."""

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, record: Sequence[bytes]) -> Sequence[bytes]:
        return record

    def decode(self, fields: Sequence[bytes]) -> Sequence[bytes]:
        return fields

"""Batches of records to send: encoded, and grouped by partition."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from chancy.errors import ChancyError, InvalidArguments
from chancy.plugins.redis.streams.model.target import Target
from chancy.plugins.redis.transport.redis_client import Reply
from chancy.plugins.redis.transport.scripts import ScriptCall, Value
from chancy.text import shown

R = TypeVar("R")

#: Maximum records and bytes of one call: a script appends those of a partition at once, 2 µs each.
MAX_RECORDS, MAX_BYTES = 10_000, 16 * 1024 * 1024
#: Maximum records and bytes of one round trip of `send_many`: 1,000 small records take 4 ms.
CHUNK = 1_000
CHUNK_BYTES = 4 * 1024 * 1024

#: Called with the number of records sent so far.
Progress = Callable[[int], object]

_ID = re.compile(r"(\d{1,15})-(\d{1,15})")


class StreamFull(ChancyError):
    """A partition stayed full of unprocessed events for as long as a send may wait."""


@dataclass(slots=True)
class RecordRun:
    """Consecutive records of a partition with the same number of fields.

    :ivar width: number of names and values of one record.
    """

    width: int
    #: The index of each record in the batch.
    places: list[int] = field(default_factory=list)
    #: The caller's id of each record, if ids were passed, and its fields.
    args: list[Value] = field(default_factory=list)


@dataclass(slots=True)
class Part:
    """The records that one script appends to one partition, atomically."""

    partition: int
    #: In the order of the records; at least one.
    runs: list[RecordRun]

    @property
    def count(self) -> int:
        """The number of records."""
        return sum(len(run.places) for run in self.runs)


class SendBatch(Generic[R]):
    """Records of a stream that are sent together.

    :param ids: whether the caller wants or passes ids.
    """

    def __init__(self, stream: Target[R], *, ids: bool) -> None:
        self._stream = stream
        self._wants_ids = ids
        self._has_ids: bool | None = None
        self._parts: dict[int, Part] = {}
        self.count = 0
        self.bytes = 0

    def add(self, record: R, id: str | None = None) -> None:
        """Encode a record and add it.

        :raises InvalidArguments: the record is not valid for the stream.
        """
        stream = self._stream
        partition = stream.route.partition(record, stream.partitions)
        fields = stream.coding.encode(record)
        part = self._parts.get(partition)
        if part is None:
            part = self._parts[partition] = Part(partition, [RecordRun(len(fields))])
        elif part.runs[-1].width != len(fields):
            part.runs.append(RecordRun(len(fields)))
        run = part.runs[-1]
        run.places.append(self.count)
        if id is not None:
            run.args.append(id)
        run.args += fields
        self._has_ids = id is not None
        self.count += 1
        self.bytes += sum(map(len, fields))

    def parts(self) -> list[Part]:
        """Return the parts to send, one for each partition.

        :raises InvalidArguments: a part has more records than a partition may hold.
        """
        stream = self._stream
        parts = list(self._parts.values())
        for part in parts:
            if part.count > stream.size:
                raise InvalidArguments(
                    f"{part.count:,} records of one call go to the partition "
                    f"{part.partition} of the stream {stream.name}, which holds {stream.size:,}: "
                    "send fewer at once, or raise size of the stream"
                )
        return parts

    def call(self, part: Part) -> ScriptCall:
        """Return the script call that appends a part."""
        stream = self._stream
        keys = stream.keys
        args: list[Value] = [
            stream.size,
            stream.full,
            "ids" if self._wants_ids else "count",
            1 if self._has_ids else 0,
        ]
        for run in part.runs:
            args += (run.width, len(run.places))
            args += run.args
        return ScriptCall(
            "streams.send", [keys.log(part.partition), keys.stat(part.partition)], args
        )


class BatchBuilder(Generic[R]):
    """Groups any number of records into batches of one round trip each."""

    def __init__(self, stream: Target[R]) -> None:
        self._stream = stream
        # At most what a partition holds: a batch of one key must find room.
        self._most = min(CHUNK, stream.size)
        self._batch = SendBatch(stream, ids=False)
        self._number = 0

    def add(self, record: R) -> SendBatch[R] | None:
        """Encode a record; return a batch when it is complete.

        :raises InvalidArguments: the record is not valid for the stream; a note names its number.
        """
        self._number += 1
        try:
            self._batch.add(record)
        except ChancyError as error:
            error.add_note(f"this is record {self._number:,}")
            raise
        if self._batch.count < self._most and self._batch.bytes < CHUNK_BYTES:
            return None
        return self.rest()

    def rest(self) -> SendBatch[R]:
        """Return the unfinished batch, which may be empty."""
        batch, self._batch = self._batch, SendBatch(self._stream, ids=False)
        return batch


def batches(stream: Target[R], records: Iterable[R]) -> Iterator[SendBatch[R]]:
    """Group records into batches of one round trip each.

    An error of the iterable or of a record is raised after the batch of the records before it.
    """
    builder, failure = BatchBuilder(stream), None
    try:
        for record in records:
            batch = builder.add(record)
            if batch is not None:
                yield batch
    except Exception as error:
        failure = error
    yield from _ended(builder, failure)


async def async_batches(
    stream: Target[R], records: Iterable[R] | AsyncIterable[R]
) -> AsyncIterator[SendBatch[R]]:
    """`batches` of either kind of iterable."""
    if not isinstance(records, AsyncIterable):
        for batch in batches(stream, records):
            yield batch
        return
    builder, failure = BatchBuilder(stream), None
    try:
        async for record in records:
            full = builder.add(record)
            if full is not None:
                yield full
    except Exception as error:
        failure = error
    for batch in _ended(builder, failure):
        yield batch


def _ended(builder: BatchBuilder[R], failure: Exception | None) -> Iterator[SendBatch[R]]:
    """The batch of the last records; then raises the error that ended them."""
    rest = builder.rest()
    if rest.count:
        yield rest
    if failure is not None:
        raise failure


def single_batch(
    stream: Target[R], records: Sequence[R], ids: Sequence[str] | None
) -> SendBatch[R]:
    """Return all records in one batch.

    :raises InvalidArguments: a record or an id is not valid, or there are too many of them or too
        many bytes.
    """
    if len(records) > MAX_RECORDS:
        raise InvalidArguments(
            f"{len(records):,} records in one call, the limit is {MAX_RECORDS:,}: use send_many"
        )
    if ids is not None:
        check_ids(ids, len(records))
    batch = SendBatch(stream, ids=True)
    for number, record in enumerate(records):
        try:
            batch.add(record, None if ids is None else ids[number])
        except ChancyError as error:
            if len(records) > 1:
                error.add_note(f"this is record {number + 1:,} of {len(records):,}")
            raise
        if batch.bytes > MAX_BYTES and len(records) > 1:
            raise InvalidArguments(
                f"the first {number + 1:,} of {len(records):,} records have {batch.bytes:,} bytes, "
                f"the limit of one call is {MAX_BYTES:,}: use send_many, or send fewer at once"
            )
    return batch


def collect_replies(
    parts: Sequence[Part], replies: Sequence[Reply | Exception], ids: list[str]
) -> list[Part]:
    """Store the ids that Redis returned; return the parts that found no room.

    :raises ChancyError: a reply was an error; other parts may have been sent.
    """
    refused: list[Part] = []
    for part, reply in zip(parts, replies, strict=True):
        if isinstance(reply, Exception):
            raise _meant(reply, part)
        if reply is None:
            refused.append(part)
        elif isinstance(reply, list):
            places = (place for run in part.runs for place in run.places)
            for place, id in zip(places, reply, strict=True):
                ids[place] = id.decode()
    return refused


def _meant(error: Exception, part: Part) -> Exception:
    if "STALEID" in str(error):
        return InvalidArguments(
            f"the id {part.runs[0].args[0]!s} is not above the last one of partition "
            f"{part.partition}; nothing was sent there ({error})"
        )
    return error


def check_ids(ids: Sequence[str], records: int) -> None:
    """:raises InvalidArguments: the ids do not match the records, are malformed or do not rise."""
    if len(ids) != records:
        raise InvalidArguments(f"{len(ids)} ids for {records} records: pass one for each record")
    last = (0, 0)
    for id in ids:
        match = _ID.fullmatch(id) if isinstance(id, str) else None
        if match is None:
            raise InvalidArguments(
                f"{shown(id)} is not a valid event id: use two whole numbers of up to 15 digits, "
                "such as 1700000000000-0"
            )
        now = int(match[1]), int(match[2])
        if now <= last:
            raise InvalidArguments(
                f"the id {id} is not above {last[0]}-{last[1]}: ids must rise, from 0-1 on"
            )
        last = now


def full_error(
    stream: Target[R], parts: Sequence[Part], refused: Sequence[Part], waited_s: float
) -> StreamFull:
    """Return the error of a send that timed out waiting for room.

    :param refused: the parts that were first in their queue and found no room.
    """
    affected = refused or parts
    numbers = ", ".join(str(part.partition) for part in affected[:8])
    where = f"partition{'s'[: len(affected) > 1]} {numbers}"
    if not refused:
        return StreamFull(
            f"the stream {stream.name}: after {waited_s:g} s this send was still queued behind "
            f"other sends of this process for room in {where}. The remaining records were not "
            "sent there; raise timeout_s, or find out why the stream is full"
        )
    return StreamFull(
        f"the stream {stream.name} has no room in {where} after {waited_s:g} s: {stream.size:,} "
        "events there are not acknowledged by every processor. The remaining records were not sent "
        "there; add workers, raise size of the stream, remove unused processors (`chancy redis "
        "stream remove`), or declare the stream with full='drop_oldest'"
    )

"""The outbox of streams: a Postgres table of events that were sent inside transactions."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterable, Iterable, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from chancy.broker.optional import SqlStore
from chancy.errors import ConfigurationError, InvalidArguments
from chancy.plugins.redis.streams.model.schema import StreamDefinition
from chancy.plugins.redis.streams.model.target import Target
from chancy.plugins.redis.streams.producing.batch import (
    CHUNK,
    CHUNK_BYTES,
    Progress,
    RecordRun,
    SendBatch,
    async_batches,
    batches,
    single_batch,
)
from chancy.plugins.redis.transport.scripts import Value
from chancy.postgres.statements import load
from chancy.postgres.within import fetch_within, fetch_within_sync
from chancy.text import shown

R = TypeVar("R")


class EventOutboxRow(NamedTuple):
    """A row of the outbox: the events of one call for one partition.

    :param pos: its position, unique for ever.
    :param about: the definition of the stream, as written in the row.
    :param values: names and values of all events, concatenated.
    :param term: the term of the relay that has taken it.
    """

    pos: int
    id: UUID
    stream: str
    partition: int
    about: str
    events: int
    width: int
    values: Sequence[bytes]
    term: int

    @property
    def mark(self) -> bytes:
        """The mark of the row that Redis keeps until the row is deleted."""
        return self.id.bytes + self.pos.to_bytes(8, "big")

    @property
    def place(self) -> tuple[str, int]:
        return self.stream, self.partition


@lru_cache(maxsize=64)
def _statement(name: str, schema: str) -> str:
    return load(
        resources.files("chancy.plugins.redis.streams.producing") / "sql", f"events_{name}", schema
    )


def outbox_batch(
    stream: Target[R], records: Sequence[R], ids: Sequence[str] | None
) -> SendBatch[R]:
    """Return a batch for the outbox; raise `InvalidArguments` for an invalid record, or for ids."""
    if ids is not None:
        raise InvalidArguments(
            "ids= and within= cannot be combined: ids must rise, and others may send to the stream "
            "before the transaction commits"
        )
    return single_batch(stream, records, None)


class EventOutboxWriter:
    """Writes events to the outbox inside a caller's transaction.

    :ivar schema: the schema of the table; None: there is no table.
    """

    def __init__(self) -> None:
        self.schema: str | None = None

    async def put(self, stream: Target[Any], batch: SendBatch[Any], within: object) -> None:
        """Write events to the table; raise what the caller's database library raises.

        :raises TypeError: ``within`` is not a supported connection, or there is no table.
        """
        text, parameters = self._insertion(stream, batch, within)
        await fetch_within(within, text, *parameters)

    def put_blocking(self, stream: Target[Any], batch: SendBatch[Any], within: object) -> None:
        """`put` without an event loop."""
        text, parameters = self._insertion(stream, batch, within)
        fetch_within_sync(within, text, *parameters)

    async def put_many(
        self,
        stream: Target[R],
        records: Iterable[R] | AsyncIterable[R],
        within: object,
        progress: Progress | None,
    ) -> int:
        """Write any number of events to the table, 1,000 at a time; return their number."""
        count = 0
        async for batch in async_batches(stream, records):
            await self.put(stream, batch, within)
            count = _counted(count, batch, progress)
        return count

    def put_many_blocking(
        self, stream: Target[R], records: Iterable[R], within: object, progress: Progress | None
    ) -> int:
        """`put_many` without an event loop."""
        count = 0
        for batch in batches(stream, records):
            self.put_blocking(stream, batch, within)
            count = _counted(count, batch, progress)
        return count

    def _insertion(
        self, stream: Target[Any], batch: SendBatch[Any], within: object
    ) -> tuple[str, list[object]]:
        if self.schema is None:
            raise TypeError(
                f"within={shown(within)}: Redis cannot join a transaction, and there is no outbox "
                "table in Postgres: pass the RedisPlugin of these streams to a Chancy with a "
                "database"
            )
        pieces = [
            (part.partition, piece)
            for part in batch.parts()
            for run in part.runs
            for piece in _pieces(run, stream.size)
        ]
        return _statement("put", self.schema), [
            stream.link.prefix,
            stream.name,
            json.dumps(stream.definition._asdict()),
            [uuid.uuid4() for _ in pieces],
            [partition for partition, _ in pieces],
            [len(piece.args) // piece.width for _, piece in pieces],
            [piece.width for _, piece in pieces],
            # As text: libraries differ in how they pass an array of bytes.
            ["\\x" + packed(piece.args).hex() for _, piece in pieces],
        ]


def _counted(count: int, batch: SendBatch[Any], progress: Progress | None) -> int:
    count += batch.count
    if progress is not None:
        progress(count)
    return count


def _pieces(run: RecordRun, size: int) -> Sequence[RecordRun]:
    """Split records into rows, each of which a relay appends as a whole."""
    most = min(CHUNK, size) * run.width
    pieces = [RecordRun(run.width)]
    taken = 0
    for at in range(0, len(run.args), run.width):
        event = run.args[at : at + run.width]
        length = sum(len(value) for value in event if isinstance(value, bytes))
        if pieces[-1].args and (len(pieces[-1].args) >= most or taken + length > CHUNK_BYTES // 4):
            pieces.append(RecordRun(run.width))
            taken = 0
        pieces[-1].args += event
        taken += length
    return pieces


def packed(values: Sequence[Value]) -> bytes:
    """Concatenate the values, each after its length."""
    found = bytearray()
    for value in values:
        assert isinstance(value, bytes), "events sent in a transaction have no ids"
        found += len(value).to_bytes(4, "big") + value
    return bytes(found)


def _unpacked(data: bytes) -> Sequence[bytes]:
    values, at = [], 0
    while at < len(data):
        after = at + 4 + int.from_bytes(data[at : at + 4], "big")
        values.append(data[at + 4 : after])
        at = after
    return values


class EventOutboxReader:
    """Reads the outbox for the relay that holds the lease.

    :param prefix: the prefix of the application, whose rows alone it reads.
    :param holder: the id of the relay.
    """

    def __init__(self, store: SqlStore, prefix: str, holder: UUID) -> None:
        self._store = store
        self._prefix = prefix
        self._holder = holder

    async def _fetch(self, name: str, *parameters: object) -> Sequence[Sequence[Any]]:
        text = _statement(name, self._store.schema)
        return await self._store.fetch(text, self._prefix, *parameters)

    async def take(
        self, lease_s: float, rows: int, bytes_: int, without: Sequence[tuple[str, int]]
    ) -> tuple[list[EventOutboxRow], set[tuple[str, int]]]:
        """Take or extend the lease and return rows in order; none if another relay holds it.

        Also return the partitions in which another transaction has locked rows.
        """
        places = [f"{stream}/{number}" for stream, number in without]
        found = await self._fetch("take", self._holder, lease_s, rows, bytes_, places)
        locked = {(row[2], row[3]) for row in found if row[0] is None}
        return sorted(_read_row(row) for row in found if row[0] is not None), locked

    async def delete(self, done: Sequence[EventOutboxRow]) -> int:
        """Delete rows that are in Redis; return their number, 0 if the lease has ended."""
        return len(await self._fetch("delete", self._holder, [row.pos for row in done]))

    async def refuse(self, row: EventOutboxRow, problem: str) -> None:
        """Record why a row waits."""
        await self._fetch("refuse", row.pos, problem)

    async def surpass(self, term: int) -> bool:
        """Start a term above the one stored in Redis; return False if the lease has ended."""
        return bool(await self._fetch("term", self._holder, term))

    async def give_up(self) -> None:
        """Release the lease, so that another relay can take it at once."""
        await self._fetch("yield", self._holder)


def _read_row(row: Sequence[Any]) -> EventOutboxRow:
    pos, id, stream, partition, about, events, width, data, term = row
    return EventOutboxRow(
        pos, id, stream, partition, about, events, width, _unpacked(bytes(data)), term
    )


@lru_cache(maxsize=1_000)
def definition_in(about: str) -> StreamDefinition:
    """The definition of a stream from the text in a row.

    :raises ConfigurationError: it has other fields, as those of a later version.
    """
    try:
        return StreamDefinition(**json.loads(about))
    except TypeError as error:
        raise ConfigurationError(f"the definition of a stream cannot be read: {error}") from error

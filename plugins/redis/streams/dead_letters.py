"""Dead letters of processors: filed among those of jobs in Postgres, and replayed from there."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple
from uuid import UUID

from pydantic import BaseModel

from chancy.broker.optional import SqlStore
from chancy.errors import StatementFailed
from chancy.plugins.redis.streams.producing.outbox import packed
from chancy.plugins.redis.streams.producing.stream import Stream
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.postgres.statements import load

#: Maximum dead letters that one statement files, and their bytes, which are held several times; at
#: least one.
BATCH, MOST_BYTES = 50, 1024 * 1024
#: The last second of the year 9999.
_LAST_S = 253_402_300_799


class Buried(NamedTuple):
    """The dead letters of one processor for one partition of its stream."""

    stream: Stream[Any]
    processor: str
    partition: int


@lru_cache(maxsize=16)
def _statement(name: str, schema: str) -> str:
    return load(resources.files("chancy.plugins.redis.streams") / "sql", f"letters_{name}", schema)


class EventLetters:
    """The events that policies have dead-lettered; see `chancy.broker.optional.LetterSource`.

    :param groups: returns the streams of the application, each with the name of a processor.
    :param streams: returns all streams of the application, also those without a processor.
    """

    def __init__(
        self,
        redis: RedisClient,
        groups: Callable[[], Iterable[tuple[Stream[Any], str]]],
        streams: Callable[[], Iterable[Stream[Any]]],
    ) -> None:
        self._redis = redis
        self._groups = groups
        self._streams = streams

    async def archive(self, store: SqlStore) -> None:
        """File dead letters in Postgres, and delete them from Redis."""
        places = [
            Buried(stream, processor, number)
            for stream, processor in self._groups()
            for number in range(stream.partitions)
        ]
        for place in places:
            while await _file(self._redis, store, place):
                pass

    async def replay_letters(
        self, store: SqlStore, ids: Sequence[UUID], new_ids: Sequence[UUID], *, force: bool
    ) -> Mapping[UUID, UUID]:
        """Send the events again, to the ends of their partitions."""
        streams = {stream.name: stream.definition._asdict() for stream in self._streams()}
        if not streams:
            return {}
        text = _statement("replay", store.schema)
        rows = await store.fetch(
            text, list(ids), list(new_ids), force, json.dumps(streams), self._redis.prefix
        )
        return {id: new for id, new, _ in rows}


async def _file(client: RedisClient, store: SqlStore, place: Buried) -> bool:
    """File the oldest dead letters of a partition; return whether there may be more."""
    key = place.stream.keys.dead(place.partition, place.processor)
    entries, more = await client.run("streams.letters", (key,), (BATCH, MOST_BYTES))
    if entries:
        text = _statement("file", store.schema)
        rows = [_row(place, key, entry, fields) for entry, fields in entries]
        try:
            await store.fetch(text, json.dumps(rows))
        except StatementFailed:
            # Only the record of an event can be refused: such an event is filed without it.
            for row in rows:
                try:
                    await store.fetch(text, json.dumps([row]))
                except StatementFailed:
                    await store.fetch(text, json.dumps([{**row, "arguments": {}}]))
        await client.command("XDEL", key, *(entry for entry, _ in entries))
    return bool(more)


def _row(place: Buried, key: str, entry: bytes, fields: Sequence[bytes]) -> Mapping[str, object]:
    kept = dict(zip(fields[::2], fields[1::2], strict=True))
    xid, error, at = (_text(kept.pop(name, b"")) for name in (b"_xid", b"_error", b"_at"))
    died_at, sent_at = _time(at), _time(xid.partition("-")[0])
    values = [part for pair in kept.items() for part in pair]
    kind, _, message = error.partition(": ")
    return {
        # The same for the same entry: it may be filed twice.
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{key}/{_text(entry)}")),
        "queue": place.stream.name,
        "func": f"{place.stream.name}/{place.processor}",
        "arguments": _record(place.stream, kept, values),
        "meta": {
            "event": {
                "id": xid,
                "prefix": place.stream.link.prefix,
                "partition": place.partition,
                "width": len(values),
                "data": base64.b64encode(packed(values)).decode(),
            }
        },
        "errors": [{"attempt": 1, "at": died_at, "types": [kind], "message": message}],
        "error": kind[:255],
        "pushed_at": sent_at,
        "died_at": died_at,
    }


def _record(
    stream: Stream[Any], kept: Mapping[bytes, bytes], values: Sequence[bytes]
) -> Mapping[str, Any]:
    """The record as JSON; if it cannot be decoded or stored, its fields as strings."""
    try:
        made = stream.coding.decode(list(values))
        text = made.model_dump_json() if isinstance(made, BaseModel) else ""
    except Exception:
        # A codec may raise anything, and that may be why the event is dead.
        text = ""
    try:
        # Postgres does not store NUL.
        found = json.loads(text, parse_constant=_refuse) if "\\u0000" not in text else None
    except ValueError:
        found = None
    if isinstance(found, dict):
        return found
    return {_text(name): _text(value) for name, value in kept.items()}


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not a JSON number")


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace").replace("\0", "\\0")


def _time(milliseconds: str) -> str:
    # Callers may choose the ids of events, and so their times.
    seconds = min(int(milliseconds) / 1000, _LAST_S) if milliseconds.isdecimal() else 0.0
    return datetime.fromtimestamp(seconds, UTC).isoformat()

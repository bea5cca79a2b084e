"""Reads the dead letters that policies have written."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.producing.stream import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamDeadLetter:
    """An event that its processor dead-lettered, by ``Ignore(keep=True)`` or `RetryInPlace`.

    :ivar id: the id of the event in its partition.
    :ivar failed_at: on the clock of the server, in ISO 8601 and UTC.
    :ivar record: the record as JSON; if it cannot be decoded, its stored fields as strings.
    """

    partition: int
    id: str
    failed_at: str
    error: str
    record: Any


async def read_dead_letters(
    stream: Stream[Any], processor: str, most: int, only: Collection[int] | None = None
) -> Sequence[StreamDeadLetter]:
    """Return the newest dead letters of a processor, at most ``most``, partition by partition.

    Those of one partition are in the order in which they were written.

    :param only: the partitions to read; None: all.
    :raises ConfigurationError: the stream has no such partition.
    :raises BrokerError: Redis is unavailable or refuses the command.
    """
    if only and not 0 <= min(only) <= max(only) < stream.partitions:
        raise ConfigurationError(
            f"the stream {stream.name} has partitions 0 to {stream.partitions - 1}, "
            f"not all of {', '.join(map(str, sorted(set(only))))}"
        )
    found: list[StreamDeadLetter] = []
    for number in range(stream.partitions) if only is None else sorted(set(only)):
        left = most - len(found)
        if left <= 0:
            break
        key = stream.keys.dead(number, processor)
        entries = await stream.link.command("XREVRANGE", key, "+", "-", "COUNT", left)
        found += [_read(stream, number, fields) for _, fields in reversed(entries)]
    return found


def _read(stream: Stream[Any], number: int, fields: Mapping[bytes, bytes]) -> StreamDeadLetter:
    kept = dict(fields)
    xid, error, at = (kept.pop(name, b"") for name in (b"_xid", b"_error", b"_at"))
    record: Any
    try:
        made = stream.coding.decode([part for pair in kept.items() for part in pair])
        record = json.loads(made.model_dump_json()) if isinstance(made, BaseModel) else str(made)
    except Exception:
        # A codec may raise anything, and that may be why the event is dead.
        record = {_text(name): _text(value) for name, value in kept.items()}
    failed_at = datetime.fromtimestamp(int(at or 0) / 1000, UTC)
    return StreamDeadLetter(
        partition=number,
        id=_text(xid),
        failed_at=failed_at.isoformat(timespec="milliseconds"),
        error=_text(error),
        record=record,
    )


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")

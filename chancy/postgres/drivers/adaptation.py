"""Adapters that make psycopg encode and decode values as asyncpg does.

Parameters are sent as text without a type: the server takes the type from the statement, as it
does for asyncpg. psycopg would choose a type by the size of an integer or the first element of a
list, so that one statement would have several prepared forms, and none for an empty list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any
from uuid import UUID

import psycopg
from psycopg.adapt import AdaptersMap, Buffer, Dumper, Loader
from psycopg.pq import Format

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST = datetime.max.replace(tzinfo=UTC)
_EARLIEST = datetime.min.replace(tzinfo=UTC)


_ELEMENTS: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "NULL",
    str: lambda text: '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"',
    UUID: attrgetter("hex"),
    int: int.__repr__,
    bool: lambda value: "t" if value else "f",
    float: float.__repr__,
    datetime: datetime.isoformat,
}


def _element(kind: type) -> Callable[[Any], str]:
    """The encoder of a type; a subclass is encoded like its base class."""
    for ancestor in kind.__mro__:
        if ancestor in _ELEMENTS:
            return _ELEMENTS[ancestor]
    raise psycopg.DataError(f"a parameter cannot be a list of {kind.__name__}")


class _ArrayDumper(Dumper):
    """Encodes a flat list as an array literal.

    psycopg's own dumper checks the quoting of each element: five times slower for 5,000 of them.
    """

    def dump(self, obj: list[Any]) -> Buffer:
        write = {kind: _element(kind) for kind in set(map(type, obj))}
        texts: Iterable[str]
        if len(write) == 1:
            texts = map(next(iter(write.values())), obj)
        else:
            texts = (write[type(value)](value) for value in obj)
        return _encoded("{" + ",".join(texts) + "}")


class _ScalarDumper(Dumper):
    def dump(self, obj: Any) -> Buffer:
        return _element(type(obj))(obj).encode()


class _TextDumper(Dumper):
    def dump(self, obj: str) -> Buffer:
        return _encoded(obj)


def _encoded(text: str) -> bytes:
    # libpq would truncate the value at a zero byte.
    if "\0" in text:
        raise psycopg.errors.CharacterNotInRepertoire(
            'invalid byte sequence for encoding "UTF8": 0x00'
        )
    return text.encode()


class _TimestamptzLoader(Loader):
    """Decodes a timestamptz as a datetime in UTC, clamped to the range of datetime.

    psycopg's own loader raises for the last hours of the year 9999 in a time zone ahead of UTC.
    """

    format = Format.BINARY

    def load(self, data: Buffer) -> datetime:
        microseconds = int.from_bytes(data, "big", signed=True)
        try:
            return _EPOCH + timedelta(microseconds=microseconds)
        except OverflowError:
            return _LATEST if microseconds > 0 else _EARLIEST


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    for kind in (int, bool, float, datetime, UUID):
        adapters.register_dumper(kind, _ScalarDumper)
    adapters.register_dumper(str, _TextDumper)
    adapters.register_dumper(list, _ArrayDumper)
    adapters.register_loader("timestamptz", _TimestamptzLoader)
    return adapters


ADAPTERS = _adapters()

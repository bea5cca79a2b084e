"""Whether a value that was read back is the one that was written."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from types import NoneType
from typing import Any, cast
from uuid import UUID

#: Types whose values hold no others, and are the same if they are equal.
_SIMPLE = frozenset({NoneType, bool, int, float, str, bytes, Decimal, UUID, date, timedelta})
_MINUTE = timedelta(minutes=1)


class Sameness:
    """Compares values.

    A value comes back the same if it is equal and of its type, or of the annotated type where it
    was of a subclass, or an int for a float. Objects are the same if all their fields are.

    :param arrays_differ: whether a list is not the same as a tuple of the same items: it is where
        the annotation leaves open which of the two comes back, since JSON has one array.
    :param enums_differ: whether a member of an enum is not the same as its value.
    """

    def __init__(self, *, arrays_differ: bool, enums_differ: bool) -> None:
        self._arrays_differ = arrays_differ
        self._enums_differ = enums_differ

    def __call__(self, one: object, other: object) -> bool:
        cls = type(one)
        if cls is type(other):
            if cls in _SIMPLE:
                return bool(one == other)
            if isinstance(one, datetime | time) and isinstance(other, datetime | time):
                return _wall(one) == _wall(other)
            if (names := _held_names(cast("Any", cls))) is not None:
                get = operator.attrgetter(*names, "__class__")  # two at least: it gives a tuple
                try:
                    return all(map(self, get(one)[:-1], get(other)[:-1]))
                except AttributeError:
                    return False
        match one, other:
            case OrderedDict(), OrderedDict() if len(one) > 1:
                return False  # jsonb keeps no order
            case dict(), dict():
                return one.keys() == other.keys() and all(self(one[key], other[key]) for key in one)
            case list() | tuple(), list() | tuple() if not hasattr(one, "_fields"):
                if self._arrays_differ and isinstance(one, list) is not isinstance(other, list):
                    return False
                return len(one) == len(other) and all(map(self, one, other))
            case datetime(), datetime():
                return _wall(one) == _wall(other)
            case _:
                pass
        if self._enums_differ and isinstance(one, Enum) and not isinstance(other, Enum):
            return False
        related = isinstance(one, type(other)) or (isinstance(one, int) and type(other) is float)
        return related and bool(one == other)


def _wall(moment: datetime | time) -> object:
    """What there is of a moment. Two of different zones are never equal while clocks go back."""
    return moment.utcoffset(), moment.tzinfo is None, moment.replace(tzinfo=None, fold=0)


@lru_cache(maxsize=1_000)
def _held_names(cls: type) -> tuple[str, ...] | None:
    """The attributes of which an object consists, if it is a dataclass or a model of pydantic."""
    if is_dataclass(cls):
        return tuple(one.name for one in fields(cls))
    declared = getattr(cls, "__pydantic_fields__", None)
    if not isinstance(declared, dict):
        return None
    return (*declared, "__pydantic_extra__", "__pydantic_private__")


def whole_minutes(value: datetime | time) -> bool:
    """Whether ISO 8601, which has hours and minutes of an offset, holds the one of a value."""
    if value.tzinfo is None or value.tzinfo is UTC:
        return True
    offset = value.utcoffset()
    return offset is not None and not offset % _MINUTE


def uneven(value: object) -> datetime | time | None:
    """A moment in a value whose offset is not `whole_minutes`, if there is one."""
    match value:
        case datetime() | time():
            return None if whole_minutes(value) else value
        case dict():
            parts: Iterable[object] = [*value, *value.values()]
        case list() | tuple() | set() | frozenset():
            parts = value
        case _:
            names = _held_names(cast("Any", type(value)))
            parts = [getattr(value, name, None) for name in names or ()]
    return next((found for part in parts if (found := uneven(part)) is not None), None)

"""Whether a value that was read back is the one that was written."""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from types import NoneType
from typing import Any, cast
from uuid import UUID

#: Types whose values hold no others, and are the same if they are equal.
_SIMPLE = frozenset({NoneType, bool, int, float, str, bytes, Decimal, UUID, date, timedelta})
_MINUTE = timedelta(minutes=1)


class Equality:
    """Compares values.

    A value comes back the same if it is equal and of its type, or of the annotated type where it
    was of a subclass, or an int for a float. Objects are the same if all their fields are, and
    containers if all their items and keys are: a set of members of an enum is equal to one of
    their values.

    :param named: types that the annotation tells apart: a value of one of these comes back of it, a
        tuple as no list, since JSON has one array, and a member of an enum as no number.
    """

    def __init__(self, named: Collection[type]) -> None:
        self._named = named

    def __call__(self, one: object, other: object) -> bool:
        cls = type(one)
        if cls is type(other):
            if cls in _SIMPLE:
                return bool(one == other)
            if isinstance(one, datetime | time) and isinstance(other, datetime | time):
                return _wall(one) == _wall(other)
            if (get := _held(cast("Any", cls))) is not None:
                try:
                    return all(map(self, get(one)[:-1], get(other)[:-1]))
                except AttributeError:
                    return False
        elif cls is int and type(other) is float:
            return one == other
        elif any(isinstance(one, each) and not isinstance(other, each) for each in self._named):
            return False
        match one, other:
            case OrderedDict(), OrderedDict() if len(one) > 1:
                return False  # jsonb keeps no order
            case dict(), dict():
                return self._items_same(one, other) and all(
                    self(value, other[key]) for key, value in one.items()
                )
            case (set() | frozenset(), set() | frozenset()) if isinstance(one, type(other)):
                return self._items_same(one, other)
            case list() | tuple() | deque(), list() | tuple() | deque():
                lists = isinstance(one, list | tuple) and not hasattr(one, "_fields")
                related = isinstance(one, type(other)) or (lists and not isinstance(other, deque))
                return related and len(one) == len(other) and all(map(self, one, other))
            case datetime(), datetime():
                return _wall(one) == _wall(other)
            case _:
                return isinstance(one, type(other)) and bool(one == other)

    def _items_same(self, one: Collection[object], other: Collection[object]) -> bool:
        """Whether two sets hold the same, or two dicts have the same keys."""
        found = {item: item for item in other}
        return len(one) == len(other) and all(
            item in found and self(item, found[item]) for item in one
        )


def _wall(moment: datetime | time) -> object:
    """What there is of a moment. Two of different zones are never equal while clocks go back."""
    return moment.utcoffset(), moment.tzinfo is None, moment.replace(tzinfo=None, fold=0)


@lru_cache(maxsize=1_000)
def _held(cls: type) -> Callable[[object], tuple[object, ...]] | None:
    """Gives the attributes of which an object consists, and its class; see `_held_names`."""
    names = _held_names(cls)
    # With the class they are two at least: of one it gives no tuple.
    return None if names is None else operator.attrgetter(*names, "__class__")


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


def advice(value: object) -> str:
    """What to do about a value that does not come back."""
    if (moment := uneven(value)) is not None:
        return (
            f"{moment!r} has an offset of {moment.utcoffset()}, and what is stored has hours and "
            "minutes: use .astimezone(timezone.utc)"
        )
    return "give it an annotation, or a value, that tells them apart"

"""Comparison of a value with the one that is read back from its JSON."""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from types import NoneType
from typing import Any, cast
from uuid import UUID

#: Types whose values hold no others, and are the same if they are equal.
_SIMPLE = frozenset({NoneType, bool, int, float, str, bytes, Decimal, UUID, date, timedelta})
_MINUTE = timedelta(minutes=1)


class Difference(Exception):
    """A part of a value does not come back as it was.

    :param part: the part; a key or an item if it is missing.
    """

    def __init__(self, part: object) -> None:
        self.part = part

    def advice(self) -> str:
        """Return what to do about it."""
        if isinstance(self.part, datetime | time):
            offset = self.part.utcoffset()
            if offset is not None and offset % _MINUTE:
                return (
                    f"{self.part!r} has an offset of {offset}, and what is stored has hours and "
                    "minutes: use .astimezone(timezone.utc)"
                )
        return "give it an annotation, or a value, that tells them apart"


def compare(one: object, other: object, named: Collection[type]) -> None:
    """Raise `Difference` if a value differs from the one that was read back.

    They are the same if they are equal and of the same type, or of the annotated type where the
    first one is of a subclass, or an int for a float. Objects are the same if all their fields
    are, and containers if all their items and keys are: a set of members of an enum is equal to a
    set of their values.

    :param named: types that the annotation distinguishes: a value of one of these has to come back
        as an instance of it, a tuple not as a list, and a member of an enum not as a number.
    """
    cls = type(one)
    if cls is type(other):  # a match of many cases takes longer than the comparison
        if cls in _SIMPLE:
            _require(one == other, one)
            return
        if cls is list:
            _compare_all(cast("Any", one), cast("Any", other), named)
            return
        if cls is datetime and _same_datetime(cast("Any", one), cast("Any", other)):
            return
        if cls is dict and _same_order(cast("Any", one), cast("Any", other), named):
            return
        if held := _held(cast("Any", cls)):
            try:
                _compare_all(held(one), held(other), named)
            except AttributeError:
                raise Difference(one) from None
            return
    match one, other:
        case _ if cls is int and type(other) is float:
            _require(one == other, one)
        case _ if any(isinstance(one, each) and not isinstance(other, each) for each in named):
            raise Difference(one)
        case (datetime() as at, datetime() as back) | (time() as at, time() as back):
            _require((at.tzinfo is None) == (back.tzinfo is None), one)
            _require(at.utcoffset() == back.utcoffset(), one)
            _require(at == back or _on_clock(at) == _on_clock(back), one)
        case OrderedDict(), OrderedDict() if len(one) > 1:
            raise Difference(one)  # jsonb keeps no order
        case dict(), dict():
            _compare_all([*one], _found(one, other), named)
            _compare_all([*one.values()], [other[key] for key in one], named)
        case (set() | frozenset(), set() | frozenset()) if isinstance(one, type(other)):
            _compare_all([*one], _found(one, other), named)
        case list() | tuple() | deque(), list() | tuple() | deque():
            lists = isinstance(one, list | tuple) and not hasattr(one, "_fields")
            related = lists and not isinstance(other, deque)
            _require(related or isinstance(one, type(other)), one)
            _compare_all([*one], [*other], named)
        case _:
            _require(isinstance(one, type(other)) and one == other, one)


def _same_datetime(one: datetime, other: datetime) -> bool:
    return one == other and one.utcoffset() == other.utcoffset()


def _require(same: object, part: object) -> None:
    if not same:
        raise Difference(part)


def _compare_all(one: Sequence[object], other: Sequence[object], named: Collection[type]) -> None:
    types = [*map(type, one)]
    if types == [*map(type, other)]:
        left, right = [*one], [*other]
        for at, cls in enumerate(types):
            if cls not in _SIMPLE:
                compare(left[at], right[at], named)
                left[at] = right[at] = None
        if left == right:  # all others at once: a comparison of each takes three times as long
            return
    _require(len(one) == len(other), one)
    for item, back in zip(one, other, strict=True):
        compare(item, back, named)


def _same_order(
    one: dict[object, object], other: dict[object, object], named: Collection[type]
) -> bool:
    """Compare dicts if they have equal keys in the same order; returns whether they have."""
    keys, back = [*one], [*other]
    if keys != back:
        return False
    _compare_all([*keys, *one.values()], [*back, *other.values()], named)
    return True


def _found(one: Collection[object], other: Collection[object]) -> list[object]:
    """Return the items or keys of ``other`` that equal those of ``one``, in the order of these."""
    found = {item: item for item in other}
    _require(len(one) == len(other), one)
    for item in one:
        _require(item in found, item)
    return [found[item] for item in one]


def _on_clock(moment: datetime | time) -> object:
    """The local time: aware datetimes of different zones are never equal in a repeated hour."""
    return moment.replace(tzinfo=None, fold=0)


@lru_cache(maxsize=1_000)
def _held(cls: type) -> Callable[[object], tuple[object, ...]] | None:
    """Return a getter of the fields of a dataclass or a model of pydantic."""
    names: list[str]
    if is_dataclass(cls):
        names = [one.name for one in fields(cls)]
    elif isinstance(declared := getattr(cls, "__pydantic_fields__", None), dict):
        names = [*declared, "__pydantic_extra__", "__pydantic_private__"]
    else:
        return None
    if len(names) < 2:  # attrgetter needs a name, and returns a tuple only for two or more
        names = (names or ["__class__"]) * 2
    return operator.attrgetter(*names)

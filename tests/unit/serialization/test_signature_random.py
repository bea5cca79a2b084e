"""Any value of any type comes back as it is, or is refused: values and types at random."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path, PurePath
from typing import Any, Literal
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, create_model
from typing_extensions import TypedDict

from chancy.errors import InvalidArguments
from tests.unit.serialization import orders
from tests.unit.serialization.orders import Color, Grade, Item, Level, Point, Span, Tone
from tests.unit.serialization.test_signature import signature

#: What stands in the text of annotations that JSON may not tell apart.
VAGUE = ("|", "Union", "Pair", "Either")


def leaves() -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    """Annotations, and values of each."""
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    offsets = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
    return st.sampled_from(
        [
            (bool, st.booleans()),
            (int, st.integers()),
            (float, st.floats(allow_nan=False, allow_infinity=False)),
            (str, text),
            (bytes, st.binary()),
            (datetime, st.datetimes(timezones=st.one_of(st.none(), st.just(UTC), offsets))),
            (date, st.dates()),
            (time, st.times(timezones=st.one_of(st.none(), offsets))),
            (timedelta, st.timedeltas()),
            (UUID, st.uuids()),
            (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
            (Color, st.sampled_from(Color)),
            (Level, st.sampled_from(Level)),
            (Tone, st.sampled_from(Tone)),
            (Grade, st.sampled_from(Grade)),
            (Literal[1, "1", True], st.sampled_from([1, "1", True])),
            (Path, text.map(Path)),
            (PurePath, text.map(PurePath)),
            (IPv4Address, st.ip_addresses(v=4)),
            (datetime | str, st.one_of(st.datetimes(timezones=offsets), text)),
            (UUID | str | int, st.one_of(st.uuids(), st.uuids().map(str), st.integers(), text)),
            (Decimal | str, st.one_of(st.decimals(allow_nan=False, allow_infinity=False), text)),
            (orders.Checked, st.builds(orders.Checked, n=st.integers())),
            (orders.Settling, st.builds(orders.Settling, name=text, day=st.dates())),
            (orders.Pair, st.builds(orders.Pair)),
            (orders.Either, st.builds(orders.Either)),
            (Item, st.builds(Item, name=text, price=st.decimals(0, 9))),
            (Point, st.builds(Point, x=st.floats(-9, 9), y=st.floats(-9, 9))),
            (Span, st.builds(Span, begin=st.dates(), days=st.integers())),
        ]
    )


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    unfit = (
        orders.Checked,
        orders.Settling,
        Item,
        Point,
        Span,
        bool,
        Level,
        Grade,
        Literal[1, "1", True],
        orders.Pair,
    )
    keys = leaves().filter(lambda leaf: leaf[0] not in (*unfit, orders.Either))
    unhashable = (Item, Point, orders.Checked, orders.Settling)
    hashable = leaves().filter(lambda leaf: leaf[0] not in unhashable)
    return st.one_of(
        inner.map(lambda one: (of(list, one[0]), st.lists(one[1], max_size=3))),
        inner.map(lambda one: (of(tuple, one[0], ...), st.lists(one[1], max_size=3).map(tuple))),
        inner.map(lambda one: (one[0] | None, st.one_of(st.none(), one[1]))),
        hashable.map(lambda one: (of(frozenset, one[0]), st.frozensets(one[1], max_size=3))),
        hashable.map(lambda one: (of(set, one[0]), st.sets(one[1], max_size=3))),
        inner.map(lambda one: (of(deque, one[0]), st.lists(one[1], max_size=3).map(deque))),
        keys.map(lambda one: (of(Counter, one[0]), st.lists(one[1], max_size=3).map(Counter))),
        st.tuples(keys, inner).map(
            lambda pair: (
                of(dict, pair[0][0], pair[1][0]),
                st.dictionaries(pair[0][1], pair[1][1], max_size=3),
            )
        ),
        st.tuples(inner, inner).map(
            lambda pair: (pair[0][0] | pair[1][0], st.one_of(pair[0][1], pair[1][1]))
        ),
    )


def of(container: Any, *parts: Any) -> Any:
    return container[parts]


@settings(max_examples=150, deadline=None)
@given(st.recursive(leaves(), nested, max_leaves=5), st.data())
def test_any_value_of_any_type_comes_back_or_is_refused(
    typed: tuple[Any, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    annotation, values = typed
    value = data.draw(values)
    function = signature(annotation)
    try:
        text = function.encode({"it": value})
    except InvalidArguments:
        if any(mark in str(annotation) for mark in VAGUE):
            return  # JSON may not tell apart what it names
        raise
    back = function.decode(text)["it"]
    assert back == value
    # With an annotation that has validators, as that of a path, it may be another member of a union
    # before it is stored: an empty Counter fits a dict, and is equal to it.
    read = TypeAdapter(annotation).validate_python(value) if empty_counter(value) else value
    assert repr(type(back)) == repr(type(read))
    assert shape(back) == shape(read)


def empty_counter(value: Any) -> bool:
    """Whether a value is or holds an empty Counter."""
    match value:
        case Counter() if not value:
            return True
        case dict():
            return any(map(empty_counter, value.values()))
        case list() | tuple() | deque():
            return any(map(empty_counter, value))
        case _:
            return False


def shape(value: Any) -> Any:
    """The types of a value and of all that it holds."""
    match value:
        case dict():
            parts = sorted((str(key), shape(key), shape(item)) for key, item in value.items())
            return type(value).__name__, parts
        case list() | tuple() | deque():
            return type(value).__name__, [shape(item) for item in value]
        case Item() | Point() | orders.Either() | orders.Checked() | orders.Settling():
            return type(value).__name__, shape(vars(value))
        case set() | frozenset():
            return type(value).__name__, sorted(str(shape(item)) for item in value)
        case _:
            return type(value).__name__


def objects(typed: tuple[Any, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """Objects that hold values of a type, and those in lists and tuples."""
    annotation, values = typed
    fields: Any = {"it": (annotation, ...)}
    model = create_model("Model", **fields)
    plain = make_dataclass("Plain", [("it", annotation)])
    slotted = make_dataclass("Slotted", [("it", annotation)], slots=True)
    make_dict: Any = TypedDict
    record = make_dict("Record", {"it": annotation})
    held = [
        (model, values.map(lambda value: model.model_construct(it=value))),
        (plain, values.map(plain)),
        (slotted, values.map(slotted)),
        (record, values.map(lambda value: {"it": value})),
    ]
    inside = [(of(list, one), st.lists(some, max_size=3)) for one, some in held]
    pairs = [(of(tuple, plain, one), st.tuples(held[1][1], some)) for one, some in held]
    return st.sampled_from([*held, *inside, *pairs])


@settings(max_examples=60, deadline=None)
@given(st.recursive(leaves(), nested, max_leaves=3), st.data())
def test_so_does_any_value_that_an_object_holds(
    typed: tuple[Any, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    annotation, values = data.draw(objects(typed))
    value = data.draw(values)
    function = signature(annotation)
    try:
        text = function.encode({"it": value})
    except InvalidArguments:
        # A model reads bytes as text unless it says otherwise, and is never asked what it holds.
        if any(mark in str(typed[0]) for mark in (*VAGUE, "bytes", "Counter", "Literal")):
            return
        raise
    back = function.decode(text)["it"]
    assert back == value
    assert held_shape(back) == held_shape(value)


def held_shape(value: Any) -> Any:
    match value:
        case list() | tuple():
            return [held_shape(item) for item in value]
        case dict():
            return {key: held_shape(item) for key, item in value.items()}
        case _:
            return type(value).__name__, shape(getattr(value, "it", value))

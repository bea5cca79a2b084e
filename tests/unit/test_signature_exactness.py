"""A value comes back as it is, or is refused before anything is written."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from ipaddress import IPv4Address
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AfterValidator, SecretStr, StringConstraints

from chancy.errors import InvalidArguments, InvalidResult
from chancy.exactness import Exactness
from chancy.schemas import Schemas
from tests.unit import orders
from tests.unit.orders import (
    Amount,
    Bounded,
    Color,
    Counted,
    Derived,
    Doubling,
    GiftItem,
    Grade,
    Item,
    Level,
    Mixed,
    Money,
    Order,
    Point,
    Point3,
    Span,
    Tone,
)
from tests.unit.test_signature import AT, ID, signature

ODD = AT.astimezone(timezone(timedelta(seconds=30)))
ITEM = Item(name="cup", price=Decimal(1))
GIFT = GiftItem(name="cup", price=Decimal(1), card="to you")


def changed(item: Any, **to: Any) -> Any:
    for name, value in to.items():
        setattr(item, name, value)
    return item


#: What would come back as something else, or not at all; and what the error says.
LOSSES: dict[str, tuple[Any, Any, str]] = {
    # what is not of the type
    "bool for int": (int, True, "valid integer, not True"),
    "text for int": (int, "1", "valid integer, not '1'"),
    "text for datetime": (datetime, AT.isoformat(), "valid datetime"),
    "datetime for date": (date, AT, "valid date"),
    "float for Decimal": (Decimal, 1.5, "Decimal"),
    "value for enum": (Color, "red", "instance of Color"),
    "tuple for list": (list[int], (1,), "valid list"),
    "dict for model": (Item, {"name": "cup", "price": Decimal(1)}, "would come back"),
    "dict for model with a validator": (orders.Checked, {"n": 1}, "would come back"),
    "dict for one of two": (Item | dict[str, Any], vars(ITEM), "would come back"),
    "dict for dataclass": (Point, {"x": 1.0, "y": 1.0}, "Point"),
    "key": (dict[str, int], {1: 1}, "valid string"),
    # what JSON, or Postgres, cannot hold
    "NaN": (float, math.nan, "nan is not a number of JSON"),
    "NaN in a list": (list[float], [math.nan], "finite number"),
    "NaN in an object": (Point, Point(math.nan, 0), "not a number of JSON"),
    "Decimal NaN": (Decimal, Decimal("NaN"), "finite number"),
    "Decimal NaN in an object": (Money, Money(Decimal("NaN")), "finite number"),
    "NUL": (list[str], ["\0"], "NUL character"),
    "NUL in an object": (Item, Item(name="\0", price=Decimal(1)), "NUL character"),
    "half a pair as key": (dict[str, str], {"\ud800": ""}, "would come back"),
    "number as own key": (Any, {1: 2}, r"cannot be stored as JSON: the key 1 is not text"),
    "number as key": (Any, [{1: 2}], r"\[0\] cannot be stored as JSON: the key 1 is not text"),
    "None as key": (dict[str, Any], {"a": {None: 1}}, "the key None is not text"),
    # numbers
    "int over the precision of float": (float, 2**53 + 1, "would come back from JSON as 900719925"),
    "among floats": (dict[str, list[float]], {"a": [0.5, 2**53 + 1]}, "would come back"),
    "in an object": (Point, Point(2**53 + 1, 0), "would come back"),
    "NUL as key": (dict[str, int], {"\0": 1}, "NUL character"),
    # moments
    "seconds in an offset": (datetime, ODD, "has an offset of 0:00:30"),
    "in a list": (list[datetime], [AT, ODD], "has an offset of 0:00:30"),
    "in a key": (dict[datetime, int], {ODD: 1}, "has an offset of 0:00:30"),
    "in a dataclass": (Point, Point(0.0, 0.0, ODD), "has an offset of 0:00:30"),
    "in a model": (Item, changed(ITEM.model_copy(), due=ODD), "has an offset of 0:00:30"),
    "time in a zone": (time, time(1, tzinfo=ZoneInfo("Europe/Berlin")), "would come back"),
    # objects of subclasses, which JSON keeps in part
    "subclass of a model": (Item, GIFT, "would come back"),
    "in a list of models": (list[Item], [ITEM, GIFT], "would come back"),
    "in a model that holds models": (Order, Order(id=1, items=[GIFT]), "would come back"),
    "subclass of a dataclass": (Point, Point3(0.0, 0.0), "would come back"),
    "in a tuple of dataclasses": (tuple[Point, ...], (Point3(0.0, 0.0),), "would come back"),
    "in a union": (Item | int, GIFT, "would come back"),
    # objects that were changed, or never checked
    "another type": (Item, changed(ITEM.model_copy(), name=1), "valid string, not 1"),
    "out of bounds": (Bounded, changed(Bounded(amount=1), amount=0), "greater than 0, not 0"),
    "dataclass out of bounds": (Amount, Amount(-1), "greater than 0"),
    "no field": (Item, Item.model_construct(name="cup"), "Field required"),
    # what the types themselves change
    "validator": (Doubling, Doubling(amount=1), "would come back from JSON as Doubling"),
    "field that is not asked for": (Counted, changed(Counted(1), n=5), "Unexpected keyword"),
    "timedelta as a float": (
        orders.Rough,
        orders.Rough(age=timedelta(days=999_999, microseconds=7)),
        "would come back",
    ),
    "derived field": (Derived, Derived(2), "Unexpected keyword argument"),
    "excluded field": (orders.Hiding, orders.Hiding(id=1, secret="x"), "would come back"),
    "extra field": (orders.Open, orders.Open(id=1, at=AT), "would come back"),  # type: ignore[call-arg]
    "keys that are left out": (orders.Lenient, {"a": 1, "b": 2}, "would come back"),
    "bytes read in another way": (orders.Raw, orders.Raw(data=b"a"), "would come back"),
    "a name by which none reads": (
        orders.Spelled,
        orders.Spelled.model_validate({"id": 1}),
        "Field required",
    ),
    "key in a held dict": (
        orders.Frame,
        orders.Frame({"street": "s", "since": date(2030, 1, 1), "x": 1}),  # type: ignore[typeddict-unknown-key]
        "Unexpected|not permitted|would come back|cannot be written",
    ),
    "secret": (SecretStr, SecretStr("x"), "would come back"),
    # what JSON does not tell apart
    "text like a datetime": (datetime | str, AT.isoformat(), "tells them apart"),
    "text like a UUID": (UUID | str, str(ID), "tells them apart"),
    "bytes or text": (str | bytes, b"a", "would come back from JSON as 'YQ=='"),
    "member or value": (Tone | str, Tone.WARM, "would come back from JSON as 'warm'"),
    "member or number": (Level | int, Level.LOW, "would come back from JSON as 1"),
    "set of members or numbers": (
        frozenset[Level] | frozenset[int],
        frozenset({Level.LOW}),
        "would come back from JSON as frozenset",
    ),
    "set of numbers or members": (set[int] | set[Level], {Level.LOW}, "would come back"),
    "set of either": (set[int | Level], {Level.LOW}, "would come back"),
    "members of two enums": (set[Grade] | set[Level], {Level.LOW}, "would come back"),
    "queue of members or numbers": (deque[int] | deque[Level], deque([Level.LOW]), "would come"),
    "keys of either": (dict[str | Tone, int], {Tone.WARM: 1}, "would come back"),
    "named tuple of either": (list[orders.Pair], [orders.Pair(Level.LOW)], "would come back"),
    "object of either": (orders.Either, orders.Either(Level.LOW), "would come back"),
    "set in an object": (orders.Either, orders.Either(1, frozenset(Level)), "would come back"),
    "dict or counter": (dict[str, int] | Counter[str], Counter("aab"), "would come back"),
    "kinds of paths": (PurePath | Path, Path("a"), "would come back"),
    "set or list": (list[int] | set[int], {1}, "would come back"),
    "tuple or list": (list[int] | tuple[int, ...], (1,), "would come back"),
    "one object or another": (Bounded | Doubling, Doubling(amount=1), "would come back"),
    "keys of two types": (dict[int | str, int], {1: 1, "1": 2}, "would come back"),
    "anything in an object": (orders.Loose, orders.Loose(anything={1, 2}), "would come back"),
    "enum of tuples": (Mixed, Mixed.PAIR, "this is what would come back from JSON"),
    "literal member": (Literal[Color.RED], Color.RED, "this is what would come back"),
    "keys that are tuples": (dict[tuple[int, int], int], {(1, 2): 3}, "what would come back"),
    "order of keys": (OrderedDict[str, int], OrderedDict(b=1, a=2), "would come back"),
    # annotations that are not of data
    "function": (type, int, "cannot be written as JSON"),
    "arbitrary": (range, range(3), "cannot be stored: Unable to generate"),
}  # fmt: skip


@pytest.mark.parametrize(("annotation", "value", "why"), LOSSES.values(), ids=LOSSES)
def test_what_would_not_come_back_is_refused(annotation: Any, value: Any, why: str) -> None:
    of = signature(annotation, annotation)
    with pytest.raises(InvalidArguments, match=why) as refused:
        of.encode({"it": value})
    assert "shop.work" in str(refused.value)
    assert "'it'" in str(refused.value)


@pytest.mark.parametrize(
    ("annotation", "value", "why"),
    [
        case
        for name, case in LOSSES.items()
        # Of the first nothing is said, and the last is not an annotation of data.
        if name not in ("number as own key", "number as key", "None as key", "arbitrary")
    ],
)
def test_such_a_result_is_refused_too(annotation: Any, value: Any, why: str) -> None:
    with pytest.raises(InvalidResult, match=why):
        signature(None, annotation).encode_result(value)


def test_what_a_validator_of_the_users_makes_of_a_value_is_what_is_stored() -> None:
    of = signature(Annotated[str, AfterValidator(str.upper)])
    assert of.decode(of.encode({"it": "a"})) == {"it": "A"}
    of = signature(Annotated[str, StringConstraints(strip_whitespace=True)])
    assert of.decode(of.encode({"it": " a "})) == {"it": "a"}


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
            (orders.Pair, st.builds(orders.Pair)),
            (orders.Either, st.builds(orders.Either)),
            (Item, st.builds(Item, name=text, price=st.decimals(0, 9))),
            (Point, st.builds(Point, x=st.floats(-9, 9), y=st.floats(-9, 9))),
            (Span, st.builds(Span, begin=st.dates(), days=st.integers())),
        ]
    )


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    unfit = (Item, Point, Span, bool, Level, Grade, Literal[1, "1", True], orders.Pair)
    keys = leaves().filter(lambda leaf: leaf[0] not in (*unfit, orders.Either))
    hashable = leaves().filter(lambda leaf: leaf[0] not in (Item, Point))
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
        if any(mark in str(annotation) for mark in ("|", "Union", "Pair", "Either")):
            return  # JSON may not tell apart what it names
        raise
    back = function.decode(text)["it"]
    assert back == value
    assert repr(type(back)) == repr(type(value))
    assert shape(back) == shape(value)


def shape(value: Any) -> Any:
    """The types of a value and of all that it holds."""
    match value:
        case dict():
            parts = sorted((str(key), shape(key), shape(item)) for key, item in value.items())
            return type(value).__name__, parts
        case list() | tuple() | deque():
            return type(value).__name__, [shape(item) for item in value]
        case Item() | Point() | orders.Either():
            return type(value).__name__, shape(vars(value))
        case set() | frozenset():
            return type(value).__name__, sorted(str(shape(item)) for item in value)
        case _:
            return type(value).__name__


def test_a_look_is_enough_for_common_types(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_back(*_: Any) -> Any:
        raise AssertionError("it was read back, which takes as long again")

    order = Order(id=1, items=[ITEM, ITEM])
    values: list[tuple[Any, Any]] = [
        (datetime, AT),
        (list[datetime | None], [AT, None]),
        (Order, order),
        (list[Order], [order]),
        (Point | None, Point(1.0, 2.0, AT)),
        (dict[str, tuple[float, ...]], {"a": (1.0, 2.0)}),
        (list[orders.Pet], [orders.Cat(), orders.Dog()]),
        (orders.Line, orders.Line(ends=(Point(0.0, 0.0), Point(1.0, 1.0)))),
        (orders.Node, orders.Node(name="a", children=[orders.Node(name="b")])),
        (Bounded, Bounded(amount=1)),
        (orders.Slotted, orders.Slotted(1, AT)),
        (orders.Settled, orders.Settled(data=b"\xff")),
        (orders.Frame, orders.Frame({"street": "s", "since": date(2030, 1, 1)})),
        (orders.Address, {"street": "s", "since": date(2030, 1, 1)}),
    ]
    monkeypatch.setattr(Schemas, "load", read_back)
    for annotation, value in values:
        signature(annotation).encode({"it": value})


def test_an_unknown_kind_of_schema_is_not_taken_to_be_exact() -> None:
    assert not Exactness().exact({"type": "of a later pydantic"})
    assert not Exactness().exact({"type": "definition-ref", "schema_ref": "nowhere"})

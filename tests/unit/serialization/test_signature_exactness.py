"""A value comes back as it is, or is refused before anything is written."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import AfterValidator, SecretStr, StringConstraints

from chancy.errors import InvalidArguments, InvalidResult
from tests.unit.serialization import orders
from tests.unit.serialization.orders import (
    Amount,
    Bounded,
    Cat,
    Color,
    Counted,
    Derived,
    Doubling,
    GiftItem,
    Grade,
    Item,
    Level,
    Line,
    Mixed,
    Money,
    Node,
    Order,
    Point,
    Point3,
    Tone,
)
from tests.unit.serialization.test_signature import AT, ID, signature

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
    "NaN": (float, math.nan, "nan is not a JSON number"),
    "NaN in a list": (list[float], [math.nan], "finite number"),
    "NaN in an object": (Point, Point(math.nan, 0), "not a JSON number"),
    "NaN beside floats": (Point, Point(math.nan, 0.0), "not a JSON number"),
    "NaN where nothing is None": (orders.Weight, orders.Weight(math.nan), "not a JSON number"),
    "NaN in a list of objects": (list[Point], [Point(math.nan, 0.0)], "not a JSON number"),
    "Decimal NaN": (Decimal, Decimal("NaN"), "finite number"),
    "Decimal NaN in an object": (Money, Money(Decimal("NaN")), "finite number"),
    "NUL": (list[str], ["\0"], "NUL character"),
    "NUL in an object": (Item, Item(name="\0", price=Decimal(1)), "NUL character"),
    "half a pair as key": (dict[str, str], {"\ud800": ""}, "would come back"),
    "number as own key": (Any, {1: 2}, r"cannot be stored as JSON: the key 1 is not a string"),
    "number as key": (Any, [{1: 2}], r"\[0\] cannot be stored as JSON: the key 1 is not a string"),
    "None as key": (dict[str, Any], {"a": {None: 1}}, "the key None is not a string"),
    # numbers
    "int over the precision of float": (float, 2**53 + 1, "would come back from JSON as 900719925"),
    "among floats": (dict[str, list[float]], {"a": [0.5, 2**53 + 1]}, "would come back"),
    "in an object": (Point, Point(2**53 + 1, 0), "would come back"),
    "NUL as key": (dict[str, int], {"\0": 1}, "NUL character"),
    # moments
    "seconds in an offset": (datetime, ODD, "has an offset of 0:00:30"),
    "in a list": (list[datetime], [AT, ODD], "has an offset of 0:00:30"),
    "in a key": (dict[datetime, int], {ODD: 1}, "has an offset of 0:00:30"),
    "in a list of dataclasses": (list[Point], [Point(0.0, 0.0, ODD)], "has an offset of 0:00:30"),
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
    "out of bounds in a list": (
        list[Bounded],
        [changed(Bounded(amount=1), amount=0)],
        "greater than 0, not 0",
    ),
    "deep within its like": (
        Node,
        Node(name="a", children=[Node(name="b", children=[changed(Node(name="c"), name=1)])]),
        "valid string, not 1",
    ),
    "none of the literals": (list[Cat], [changed(Cat(), kind="dog")], "Input should be 'cat'"),
    "too few": (Line, Line(ends=(Point(0.0, 0.0),)), "Field required"),  # type: ignore[arg-type]
    "too many": (Line, Line(ends=(Point(0.0, 0.0, AT),) * 3), "Tuple should have at most 2"),  # type: ignore[arg-type]
    "one of a tuple": (Line, Line(ends=(Point(0.0, 0.0), Point3(0.0, 0.0))), "would come back"),
    "no field": (Item, Item.model_construct(name="cup"), "Field required"),
    # what the types themselves change
    "validator": (Doubling, Doubling(amount=1), "would come back from JSON as Doubling"),
    "validator that is asked before": (
        orders.Growing,
        orders.Growing(amount=1),
        "would come back from JSON as Growing",
    ),
    "bytes in a union of a model": (list[orders.Blob], [orders.Blob(data=b"\xff")], "would come"),
    "validator that asks": (orders.Asking, orders.Asking(n=1), "would come back from JSON as Ask"),
    "validator that sees text": (
        orders.Misreading,
        orders.Misreading(day=date(2030, 1, 1)),
        "would come back",
    ),
    "what a validator refuses": (
        orders.Settling,
        orders.Settling.model_construct(name=1, day=date(2030, 1, 1)),
        "valid string, not 1",
    ),
    "objects that hold each other, the other first": (
        tuple[orders.Tree | None, orders.Twig],
        (None, orders.Twig(trees=[orders.Tree.model_construct(leaf=AT.isoformat())])),
        "would come back",
    ),
    "objects that hold each other": (
        orders.Twig,
        orders.Twig(trees=[orders.Tree.model_construct(leaf=AT.isoformat())]),
        "would come back",
    ),
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
    "text like a UUID without dashes": (UUID | str, ID.hex, "tells them apart"),
    "text like a date": (date | str, "2030-01-02", "tells them apart"),
    "text like a timedelta": (timedelta | str, "P1D", "tells them apart"),
    "text like a number": (list[Decimal | str], ["1"], "tells them apart"),
    "text like bytes": (bytes | str, "YQ==", "tells them apart"),
    "seconds in an offset, beside text": (datetime | str, ODD, "has an offset of 0:00:30"),
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
    "number equal to a literal": (list[Literal[True] | Decimal], [Decimal(1)], "would come back"),
    "set or list": (list[int] | set[int], {1}, "would come back"),
    "tuple or list": (list[int] | tuple[int, ...], (1,), "would come back"),
    "one object or another": (Bounded | Doubling, Doubling(amount=1), "would come back"),
    "keys of two types": (dict[int | str, int], {1: 1, "1": 2}, "would come back"),
    "anything in an object": (orders.Loose, orders.Loose(anything={1, 2}), "would come back"),
    "enum of tuples": (Mixed, Mixed.PAIR, "this is what would come back from JSON"),
    "member of a literal or number": (set[int | Literal[Level.LOW]], {Level.LOW}, "would come"),
    "literal member": (Literal[Color.RED], Color.RED, "this is what would come back"),
    "keys that are tuples": (dict[tuple[int, int], int], {(1, 2): 3}, "what would come back"),
    "order of keys": (OrderedDict[str, int], OrderedDict(b=1, a=2), "would come back"),
    # annotations that are not of data
    "function": (type, int, "cannot be written as JSON"),
    "arbitrary": (range, range(3), "cannot be stored: Unable to generate"),
}  # fmt: skip


#: Of results that are plain JSON nothing is said, and the last is not an annotation of data.
ONLY_ARGUMENTS = ("number as own key", "number as key", "None as key", "arbitrary")


@pytest.mark.parametrize("name", LOSSES)
def test_values_that_do_not_round_trip_are_refused(name: str) -> None:
    annotation, value, why = LOSSES[name]
    of = signature(annotation, annotation)
    with pytest.raises(InvalidArguments, match=why) as refused:
        of.encode({"it": value})
    assert "shop.work" in str(refused.value)
    assert "'it'" in str(refused.value)
    if name not in ONLY_ARGUMENTS:
        with pytest.raises(InvalidResult, match=why):
            signature(None, annotation).encode_result(value)


def test_the_output_of_a_user_validator_is_stored() -> None:
    of = signature(Annotated[str, AfterValidator(str.upper)])
    assert of.decode(of.encode({"it": "a"})) == {"it": "A"}
    of = signature(Annotated[str, StringConstraints(strip_whitespace=True)])
    assert of.decode(of.encode({"it": " a "})) == {"it": "a"}


def test_a_union_is_read_in_its_own_order_whatever_was_declared_before() -> None:
    first, second = signature(bytes | str), signature(str | bytes)
    assert first.decode(first.encode({"it": b"a"})) == {"it": b"a"}
    assert second.decode(second.encode({"it": "YQ=="})) == {"it": "YQ=="}
    with pytest.raises(InvalidArguments, match="'it'"):
        second.encode({"it": b"a"})

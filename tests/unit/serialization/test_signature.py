"""Values of arguments go out as readable JSON and come back as they were."""

from __future__ import annotations

import json
import typing
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NewType, Required
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from typing_extensions import TypedDict, Unpack

from chancy.errors import InvalidArguments
from chancy.serialization.signature import Signature
from tests.unit.serialization import orders
from tests.unit.serialization.orders import (
    Box,
    Cat,
    Color,
    Dog,
    Item,
    Level,
    Line,
    Node,
    Order,
    Point,
    Tone,
)

AT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
INDIA = timezone(timedelta(hours=5, minutes=30))
ID = UUID("0190a0b0-0000-7000-8000-000000000001")
UserId = NewType("UserId", int)


def signature(annotation: Any, result: Any = None) -> Signature:
    """Of a function with one parameter, ``it``, of a type."""

    def function(it: Any) -> Any: ...

    function.__annotations__ = {"it": annotation, "return": result}
    return Signature.of(function, "shop.work")


#: Annotation, value, and the JSON of it.
VALUES: list[tuple[Any, Any, str]] = [
    (int, -7, "-7"),
    (int, 2**200, str(2**200)),
    (float, 0.1, "0.1"),
    (float, 5e-324, "5e-324"),
    (str, 'é "\u2028\\', '"é \\"\u2028\\\\"'),
    (bool, True, "true"),
    (None, None, "null"),
    (UserId, UserId(4), "4"),
    (bytes, b"\xff\x00", '"_wA="'),
    (datetime, AT, '"2030-01-02T03:04:05.678901Z"'),
    (datetime, AT.replace(tzinfo=None), '"2030-01-02T03:04:05.678901"'),
    (datetime, AT.astimezone(INDIA), '"2030-01-02T08:34:05.678901+05:30"'),
    (datetime, datetime.min.replace(tzinfo=INDIA), '"0001-01-01T00:00:00+05:30"'),
    (datetime, datetime.max, '"9999-12-31T23:59:59.999999"'),  # noqa: DTZ901
    (date, date.min, '"0001-01-01"'),
    (time, time(1, 2, 3, 4, INDIA), '"01:02:03.000004+05:30"'),
    (timedelta, timedelta(days=-1, microseconds=1), '"-PT23H59M59.999999S"'),
    (timedelta, timedelta.max, '"P2739726Y9DT23H59M59.999999S"'),
    (timedelta, timedelta.min, '"-P2739726Y9D"'),
    (UUID, ID, f'"{ID}"'),
    (Decimal, Decimal("1.10"), '"1.10"'),
    (Decimal, Decimal("-0.00"), '"-0.00"'),
    (Decimal, Decimal("1E+400"), '"1E+400"'),
    (Color, Color.BLUE, '"blue"'),
    (Level, Level.HIGH, "2"),
    (Tone, Tone.WARM, '"warm"'),
    (Path, Path("a/b"), '"a/b"'),
    (Literal["a", 1], 1, "1"),
    (datetime | None, None, "null"),
    (int | str, "1", '"1"'),
    (int | Color | None, Color.RED, '"red"'),
    (list[date], [date(2030, 1, 1)], '["2030-01-01"]'),
    (tuple[int, str], (1, "a"), '[1,"a"]'),
    (tuple[int, ...], (), "[]"),
    (set[int], {3}, "[3]"),
    (frozenset[tuple[int, str]], frozenset({(1, "a")}), '[[1,"a"]]'),
    (dict[int, bytes], {1: b"a"}, '{"1":"YQ=="}'),
    (dict[date, Decimal], {date(2030, 1, 1): Decimal(1)}, '{"2030-01-01":"1"}'),
    (dict[UUID, list[timedelta]], {ID: [timedelta(1)]}, f'{{"{ID}":["P1D"]}}'),
    (deque[int], deque([1]), "[1]"),
    (Counter[str], Counter("aab"), '{"a":2,"b":1}'),
    (defaultdict[str, int], defaultdict(int, a=1), '{"a":1}'),
    (Sequence[int], [1], "[1]"),
    (Mapping[str, Decimal], {"a": Decimal(1)}, '{"a":"1"}'),
    (orders.Address, {"street": "s", "since": date(2030, 1, 1)},
     '{"street":"s","since":"2030-01-01"}'),
    (orders.Span, orders.Span(date(2030, 1, 1), 3), '["2030-01-01",3]'),
    (orders.Nothing, orders.Nothing(), "{}"),
    (Point, Point(1.5, 2.0), '{"x":1.5,"y":2.0,"at":null}'),
    (
        Line,
        Line(ends=(Point(0.0, 0.0), Point(1.0, 1.0, AT)), tags=frozenset({"a"})),
        '{"ends":[{"x":0.0,"y":0.0,"at":null},'
        '{"x":1.0,"y":1.0,"at":"2030-01-02T03:04:05.678901Z"}],"tags":["a"]}',
    ),
    (
        Order,
        Order(id=1, items=[Item(name="cup", price=Decimal("9.90"), due=AT)]),
        '{"id":1,"items":[{"name":"cup","price":"9.90","due":"2030-01-02T03:04:05.678901Z"}],'
        '"color":"red"}',
    ),
    (orders.Pet, Cat(lives=3), '{"kind":"cat","lives":3}'),
    (list[orders.Pet], [Cat(), Dog()], '[{"kind":"cat","lives":9},{"kind":"dog"}]'),
    (
        Node,
        Node(name="a", children=[Node(name="b")]),
        '{"name":"a","children":[{"name":"b","children":[]}]}',
    ),
    (Box[date], Box[date](content=date(2030, 1, 1)), '{"content":"2030-01-01"}'),
    (orders.Bounded, orders.Bounded(amount=1), '{"amount":1}'),
    (orders.Checked, orders.Checked(n=1), '{"n":1}'),
    (orders.Named, orders.Named(orderId=1), '{"orderId":1}'),
    (orders.Open, orders.Open(id=1, more="x"), '{"id":1,"more":"x"}'),  # type: ignore[call-arg]
    (orders.Loose, orders.Loose(anything=[1, {"a": None}]), '{"anything":[1,{"a":null}]}'),
    (Any, {"a": [1, 1.5, None, True, "x"]}, '{"a":[1,1.5,null,true,"x"]}'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("annotation", "value", "text"), VALUES, ids=[f"{v[0]}-{v[2]}"[:60] for v in VALUES]
)
def test_a_value_comes_back_equal_and_of_its_type(annotation: Any, value: Any, text: str) -> None:
    of = signature(annotation, annotation)
    stored = of.encode({"it": value})
    assert stored == f'{{"it":{text}}}'
    back = of.decode(stored)["it"]
    assert (back, type(back)) == (value, type(value))
    # As a result, and among other arguments, some of which nothing is said of.
    result = of.encode_result(value)
    assert result == text
    again = of.read_result(json.loads(result))
    assert (again, type(again)) == (value, type(value))


def test_a_time_keeps_its_offset_and_not_the_name_of_its_zone() -> None:
    berlin = datetime(2030, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    back = signature(datetime).decode(signature(datetime).encode({"it": berlin}))["it"]
    assert back.utcoffset() == berlin.utcoffset() == timedelta(hours=1)
    assert back.replace(tzinfo=None) == berlin.replace(tzinfo=None)
    # Also where it has to be read back to be sure, though two zones then are never equal.
    either = signature(datetime | str)
    assert either.decode(either.encode({"it": berlin}))["it"] == back


@pytest.mark.parametrize(
    ("annotation", "value", "back"),
    [
        (float, 3, 3.0),
        (list[float], [1, 2.5], [1.0, 2.5]),
        (str, Tone.WARM, "warm"),
        (int, Level.LOW, 1),
        (Sequence[int], (1, 2), [1, 2]),
        (Any, (1, (2,)), [1, [2]]),
        (list[orders.Address | str], [Tone.WARM], ["warm"]),
        (tuple[Any, ...], ((1,), {"a": (2,)}), ([1], {"a": [2]})),
        (Point, Point(1, 2), Point(1.0, 2.0)),
    ],
)
def test_equal_values_are_returned_with_the_annotated_type(
    annotation: Any, value: Any, back: Any
) -> None:
    of = signature(annotation)
    found = of.decode(of.encode({"it": value}))["it"]
    assert (found, type(found)) == (back, type(back))


class Extras(TypedDict, total=False):
    at: Required[datetime]
    ids: list[UUID]


def unpacked(n: int, **extras: Unpack[Extras]) -> None: ...


class Options(typing.TypedDict):
    at: datetime
    ids: typing.NotRequired[list[UUID]]


def standard(n: int, **extras: typing.Unpack[Options]) -> None: ...


def rest(n: int, **rest: date) -> None: ...


def mixed(free, number: int, at: datetime, later: Decimal | None = None, **rest): ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (unpacked, {"n": 1, "at": AT, "ids": [ID]}),
        (unpacked, {"n": 1, "at": AT}),
        (standard, {"n": 1, "at": AT}),
        (rest, {"n": 1, "rest": date(2030, 1, 1), "other": date(2030, 1, 2)}),
        (mixed, {"free": [1], "number": 1, "at": AT, "later": Decimal(1), "x": {"y": 1}}),
        (mixed, {"free": {"a": None}, "number": 2**70, "at": AT}),
    ],
)
def test_signatures_of_many_parameters(
    function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    of = Signature.of(function, "shop.work")
    text = of.encode(arguments)
    assert of.decode(text) == arguments
    assert json.loads(text).keys() == arguments.keys()


def test_arguments_that_have_defaults_may_be_left_out() -> None:
    def function(a: int, at: datetime = AT) -> None: ...

    assert Signature.of(function, "shop.work").encode({"a": 1}) == '{"a":1}'


def test_a_signature_is_made_once() -> None:
    assert Signature.of(mixed, "a.mixed") is Signature.of(mixed, "a.mixed")
    assert Signature.of(mixed, "b.mixed").path == "b.mixed"


def test_further_keywords_are_held_to_their_annotation_exactly() -> None:
    def work(**rest: int | Level) -> None: ...

    of = Signature.of(work, "shop.work")
    assert of.decode(of.encode({"a": 1})) == {"a": 1}
    with pytest.raises(InvalidArguments, match=r"Level\.LOW.* would come back from JSON as 1"):
        of.encode({"a": 1, "b": Level.LOW})

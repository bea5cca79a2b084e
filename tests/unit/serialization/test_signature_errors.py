"""What the errors of arguments and results say, at the push, before the run and after it."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any

import pytest

from chancy.errors import InvalidArguments, InvalidResult, PayloadTooLarge
from chancy.serialization.sealed import FORMAT
from chancy.serialization.signature import Signature
from tests.unit.context import hosts as outsides
from tests.unit.serialization.orders import Loose, Node, Order, Point
from tests.unit.serialization.test_signature import AT, signature

if typing.TYPE_CHECKING:
    from tests.unit.serialization.orders import Item as Unseen


def remind(to: str, at: datetime, tags: list[str] | None = None) -> None: ...


def total(order: Order, **more: int) -> None: ...


def unseen(item: Unseen, n: int = 0) -> Unseen:
    return item


def within(it: datetime, free: Any) -> None: ...


class Standard(typing.TypedDict):
    a: int


class Hidden(typing.TypedDict):
    item: Unseen


def unpacked(**keys: typing.Unpack[Hidden]) -> None: ...


REMIND = Signature.of(remind, "shop.remind")
TOTAL = Signature.of(total, "shop.total")


@pytest.mark.parametrize(
    ("of", "arguments", "message"),
    [
        (
            REMIND,
            {"to": "a", "at": "tomorrow"},
            "shop.remind: parameter 'at': Input should be a valid datetime, not 'tomorrow'",
        ),
        (
            REMIND,
            {"to": 1, "at": AT, "tags": ["a", 2]},
            "shop.remind: parameter 'to': Input should be a valid string, not 1; "
            "parameter 'tags'[1]: Input should be a valid string, not 2",
        ),
        (REMIND, {"to": "a"}, "shop.remind: missing a required argument: 'at'"),
        (
            REMIND,
            {"to": "a", "at": AT, "cc": 1},
            "shop.remind: got an unexpected keyword argument 'cc'",
        ),
        (
            signature(list[int]),
            {"it": ["a"] * 5},
            "shop.work: parameter 'it'[0]: Input should be a valid integer, not 'a'; "
            "parameter 'it'[1]: Input should be a valid integer, not 'a'; "
            "parameter 'it'[2]: Input should be a valid integer, not 'a'; and 2 more",
        ),
        (
            TOTAL,
            {"order": Order(id=1, items=[]), "x": "y"},
            "shop.total: parameter **more['x']: Input should be a valid integer, not 'y'",
        ),
        (
            signature(int),
            {"it": outsides},
            f"shop.work: parameter 'it': Input should be a valid integer, not {outsides!r}"[:60],
        ),
    ],
)
def test_the_error_names_function_parameter_and_reason(
    of: Signature, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArguments) as refused:
        of.encode(arguments)
    assert str(refused.value).startswith(message)
    assert refused.value.__cause__ is None  # what pydantic says at length is said already


@pytest.mark.parametrize(
    ("of", "text", "message"),
    [
        (REMIND, '{"to":"a","at":"x"}', "shop.remind: parameter 'at': Input should be a valid dat"),
        (REMIND, '{"to":"a"}', "shop.remind: missing a required argument: 'at'"),
        (
            REMIND,
            '{"to":"a","at":"2030-01-01T00:00","b":1}',
            "shop.remind: got an unexpected keyword",
        ),
        (TOTAL, '{"order":{"id":1}}', "shop.total: parameter 'order'['items']: Field required"),
        (signature(int), '{"it":"1"}', "shop.work: parameter 'it': Input should be a valid int"),
        (signature(int), "[1]", "the stored arguments are list, not an object"),
        (signature(int), '{"it":', "the stored JSON cannot be decoded"),
        (signature(date), '{"it":', "shop.work: Invalid JSON"),
        (signature(date), "[1]", "shop.work: Input should be an object"),
    ],
)
def test_stored_arguments_are_validated_against_the_current_function(
    of: Signature, text: str, message: str
) -> None:
    with pytest.raises(InvalidArguments) as refused:
        of.decode(text)
    assert str(refused.value).startswith(message)


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise ValueError

    with pytest.raises(InvalidArguments, match=r"valid integer, not .*Shy that cannot be shown"):
        signature(int).encode({"it": Shy()})


def test_an_error_in_a_validator_of_the_users_is_reported_with_its_cause() -> None:
    from pydantic import AfterValidator

    def check(value: int) -> int:
        raise KeyError(value)

    with pytest.raises(InvalidArguments, match=r"shop.work: KeyError: 1") as refused:
        signature(typing.Annotated[int, AfterValidator(check)]).encode({"it": 1})
    assert isinstance(refused.value.__cause__, KeyError)


# Annotations of which nothing can be made


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        (
            unseen,
            {"item": 1},
            r"annotation Unseen cannot be resolved \(NameError: .*\): import what it nam",
        ),
        (
            unpacked,
            {"item": 1},
            r"\*\*keys\['item'\]: its annotation .*Hidden.* cannot be resolved \(NameError",
        ),
        (lambda it: 0, {"it": {1}}, "JSON has no type for set"),
    ],
)
def test_a_parameter_that_cannot_be_read_takes_no_argument(
    function: Callable[..., Any], arguments: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidArguments, match=why):
        Signature.of(function, "shop.work").encode(arguments)


def test_such_a_parameter_harms_no_other() -> None:
    of = Signature.of(unseen, "shop.unseen")
    assert of.encode({"n": 1}) == '{"n":1}'
    with pytest.raises(InvalidArguments, match="parameter 'item': its annotation"):
        of.decode('{"item":1}')


def test_a_result_without_a_usable_annotation_is_stored_as_plain_json() -> None:
    of = Signature.of(unseen, "shop.unseen")
    assert of.encode_result({"a": 1, 2: None}) == '{"a":1,"2":null}'
    assert of.read_result({"a": 1}) == {"a": 1}


@pytest.mark.parametrize("annotation", [range, Standard, Iterable[int]])
def test_so_is_one_of_an_annotation_whose_values_do_not_come_back(annotation: Any) -> None:
    """On Python 3.11 pydantic refuses a TypedDict of typing, too."""
    of = signature(None, annotation)
    assert of.read_result({"a": 1}) == {"a": 1}
    assert of.encode_result({"a": 1}) == '{"a":1}'
    assert of.read_result({"a": 1}) == {"a": 1}
    with pytest.raises(InvalidResult, match=r"the result"):
        of.encode_result({"a": range(3)})


@pytest.mark.parametrize("value", [{1}, {1: 2}, [{None: 1}], AT, b"a", math.nan, [Point(0.0, 0.0)]])
def test_so_is_an_argument_without_an_annotation_beside_others(value: Any) -> None:
    of = Signature.of(within, "shop.within")
    assert of.decode(of.encode({"it": AT, "free": [(1, 0.5), {"a": None}]}))["free"][1] == {
        "a": None
    }
    with pytest.raises(InvalidArguments, match=r"free"):
        of.encode({"it": AT, "free": value})


def test_an_argument_of_an_unsupported_type_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidArguments, match=r"parameter 'it': values of its annotation .*range"):
        signature(range).encode({"it": range(3)})


def test_further_keywords_of_an_unsupported_annotation_are_refused_with_the_reason() -> None:
    def work(a: datetime, **rest: range) -> None: ...

    of = Signature.of(work, "shop.work")
    assert of.decode(of.encode({"a": AT})) == {"a": AT}
    with pytest.raises(InvalidArguments, match=r"parameter \*\*rest\['b'\]: values of .*range"):
        of.encode({"a": AT, "b": range(3)})


# The format of another version


@pytest.mark.parametrize(
    "of", [signature(Any), signature(int), signature(date), TOTAL, Signature.of(dict, "shop.dict")]
)
def test_a_later_format_is_distinguished_from_arguments(of: Signature) -> None:
    with pytest.raises(InvalidArguments, match="of a plugin that this application does not have"):
        of.decode(f'{{"{FORMAT}":2,"arguments":"…"}}')
    with pytest.raises(InvalidArguments, match=r"\$chancy"):
        of.encode({FORMAT: 2})


@pytest.mark.parametrize("annotation", [Any, dict, dict[str, Any], dict[str, date], date])
def test_a_later_format_is_distinguished_from_results(annotation: Any) -> None:
    of = signature(None, annotation)
    with pytest.raises(InvalidResult, match="of a plugin that this application does not have"):
        of.read_result({FORMAT: 2})
    with pytest.raises(InvalidResult, match=r"the key '\$chancy'"):
        of.encode_result({FORMAT: 2})


# Limits


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(str, "é" * 30), (bytes, b"x" * 60), (list[str], ["é" * 30]), (Any, [1] * 60)],
)
def test_the_limit_is_in_bytes_of_the_text(annotation: Any, value: Any) -> None:
    of = signature(annotation, annotation)
    size = len(of.encode({"it": value}).encode())
    assert of.encode({"it": value}, limit=size)
    with pytest.raises(
        PayloadTooLarge, match=rf"shop.work must be at most {size - 1} bytes as JSON, not {size}:"
    ):
        of.encode({"it": value}, limit=size - 1)
    with pytest.raises(PayloadTooLarge, match=r"the result of shop\.work must be at most 50 "):
        of.encode_result(value, limit=50)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def chain(levels: int) -> Node:
    node = Node(name="leaf")
    for _ in range(levels):
        node = Node(name="x", children=[node])
    return node


def circle() -> Node:
    node = Node(name="a")
    node.children = [node]
    return node


@pytest.mark.parametrize("levels", [90, 180, 250, 2_000, 20_000])
def test_deeply_nested_values_are_refused(levels: int) -> None:
    cases: list[tuple[Signature, dict[str, Any]]] = [
        (signature(Any), {"it": deep(levels)}),
        (signature(list[Any]), {"it": deep(levels)}),
        (signature(Loose), {"it": Loose(anything=deep(levels))}),
        (Signature.of(within, "shop.within"), {"it": AT, "free": deep(levels)}),
    ]
    for of, arguments in cases:
        try:
            text = of.encode(arguments)
        except InvalidArguments:
            assert levels > 180
        else:
            assert len(of.decode(text)) == len(arguments)


@pytest.mark.parametrize("value", [chain(150), chain(400), circle()], ids=["150", "400", "circle"])
def test_objects_that_are_too_deep_or_hold_themselves_are_refused(value: Node) -> None:
    with pytest.raises(InvalidArguments, match=r"recursion|depth|Circular"):
        signature(Node).encode({"it": value})


def test_a_number_that_is_too_long_to_be_read_is_refused() -> None:
    for annotation, largest, over in (
        (Any, 10**4299, 10**4300),
        (int, 10**4299, 10**4300),
        (list[int], [10**4298], [10**4300]),
    ):
        of = signature(annotation)
        assert of.decode(of.encode({"it": largest})) == {"it": largest}
        with pytest.raises(InvalidArguments):
            of.encode({"it": over})


def test_arguments_are_a_dict() -> None:
    with pytest.raises(InvalidArguments, match="JSON has no type for mappingproxy"):
        signature(datetime).encode(MappingProxyType({"it": datetime.now(UTC)}))


def test_the_fields_of_a_model_are_not_equal_to_the_model() -> None:
    with pytest.raises(InvalidArguments, match="instance of Point, not"):
        signature(Point).encode({"it": {"x": 1.0, "y": 2.0}})
    assert signature(Point).decode('{"it":{"x":1,"y":2}}') == {"it": Point(1.0, 2.0)}

"""JSON that goes into a database and comes back as it was, or does not go in."""

from __future__ import annotations

import decimal
import math
import uuid
from datetime import UTC, datetime
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chancy.errors import InvalidArguments, PayloadTooLarge
from chancy.serialization.codec import decode, encode
from chancy.testing.conformance.hostile import HOSTILE_TEXT

storable_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable_text,
    lambda inner: st.lists(inner) | st.dictionaries(storable_text, inner),
)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def circular() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = value
    return value


@given(values)
def test_whatever_is_encoded_comes_back(value: object) -> None:
    assert decode(encode(value, what="it")) == value


@pytest.mark.parametrize("text", HOSTILE_TEXT.values(), ids=HOSTILE_TEXT)
def test_hostile_text_comes_back(text: str) -> None:
    value = {"value": text, text: [text]}
    assert decode(encode(value, what="it")) == value


@given(st.text(st.sampled_from("\\u0000x\0")))
def test_a_nul_is_distinguished_from_its_spelling(text: str) -> None:
    if "\0" in text:
        with pytest.raises(InvalidArguments, match="NUL"):
            encode({"a": [text]}, what="it")
    else:
        assert decode(encode({"a": [text]}, what="it")) == {"a": [text]}


#: A value, and what its error says about the place and the reason.
REFUSED: dict[str, tuple[Any, str, str]] = {
    "nul": ({"a": ["b", "c\0d"]}, "['a'][1]", "NUL character"),
    "nul-key": ({"a": {"b\0": 1}}, "['a'] (key)", "NUL character"),
    "nul-alone": ("\0", "", "NUL character"),
    "high-surrogate": ({"a": "x\ud800"}, "['a']", r"an unpaired surrogate ('\ud800')"),
    "low-surrogate": (["\udfff"], "[0]", r"an unpaired surrogate ('\udfff')"),
    "surrogate-key": ({"\ud83d": 1}, "(key)", "an unpaired surrogate"),
    "nan": ({"a": math.nan}, "['a']", "nan is not a JSON number"),
    "infinity": ([0.0, math.inf], "[1]", "inf is not a JSON number"),
    "minus-infinity": ((-math.inf,), "[0]", "-inf is not a JSON number"),
    "1e400": ({"a": float("1e400")}, "['a']", "inf is not a JSON number"),
    "huge-int": ({"a": 10**5000}, "['a']", "16,610 bits"),
    "bytes": ({"a": b"x"}, "['a']", "no type for bytes"),
    "datetime": ([datetime.now(UTC)], "[0]", "no type for datetime"),
    "uuid": ([uuid.uuid4()], "[0]", "no type for UUID"),
    "decimal": ([decimal.Decimal(1)], "[0]", "no type for Decimal"),
    "set": ({"a": {1}}, "['a']", "no type for set"),
    "object": ({"a": object()}, "['a']", "no type for object"),
    "tuple-key": ({"a": {(1, 2): 3}}, "['a']", "the key (1, 2) is not a string"),
    "deep": (nested(100_000), "[0][0][0]", "more than 100 levels"),
    "circular": (circular(), "['itself']['itself']", "or contains itself"),
}


@pytest.mark.parametrize(("value", "place", "reason"), REFUSED.values(), ids=REFUSED)
def test_the_error_names_the_place_and_the_reason(value: object, place: str, reason: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        encode(value, what="the arguments of shop.work")
    said = str(caught.value)
    assert said.startswith("the arguments of shop.work")
    assert place in said.partition(" cannot be stored")[0]
    assert reason in said.partition(" cannot be stored")[2]
    assert len(said) < 1_000
    assert said.isprintable()


def test_the_place_of_a_fault_is_exact() -> None:
    with pytest.raises(InvalidArguments) as caught:
        encode({"to": [{"name": "x"}, {"name": "\0"}]}, what="the arguments of mail.send")
    assert str(caught.value) == (
        "the arguments of mail.send['to'][1]['name'] cannot be stored as JSON: "
        "it has a NUL character, which Postgres cannot store"
    )


def test_text_that_is_not_ascii_is_kept_short() -> None:
    assert encode("ü漢", what="it") == '"ü漢"'


def test_enums_are_their_values() -> None:
    class Colour(StrEnum):
        RED = "red"

    class Size(IntEnum):
        BIG = 3

    assert encode([Colour.RED, Size.BIG], what="it") == '["red",3]'


def test_the_limit_counts_bytes() -> None:
    text = "ü" * 10
    assert encode(text, what="it", limit=22) == f'"{text}"'
    with pytest.raises(
        PayloadTooLarge, match=r"the arguments must be at most 21 .*, not 22: store"
    ):
        encode(text, what="the arguments", limit=21)


def test_a_megabyte_is_the_limit_by_default() -> None:
    encode("x" * (1024 * 1024 - 2), what="it")
    with pytest.raises(PayloadTooLarge, match="not 1,048,577"):
        encode("x" * (1024 * 1024 - 1), what="it")


@pytest.mark.parametrize("text", ["", "{", "nul", "[1,]", "'a'", "[" * 100_000, "\0"])
def test_invalid_json_cannot_be_decoded(text: str) -> None:
    with pytest.raises(InvalidArguments, match="cannot be decoded"):
        decode(text)

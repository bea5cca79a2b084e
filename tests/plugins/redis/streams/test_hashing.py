"""Partitions: the same for one key, everywhere and for ever."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from pydantic import create_model

from chancy.errors import ConfigurationError, InvalidArguments
from chancy.plugins.redis.streams.encoding.hashing import RecordRoute, find_hasher, key_bytes
from chancy.plugins.redis.streams.model.record import Record


class Shape(StrEnum):
    ROUND = "round"


class Number(Enum):
    ONE = 1


class Customer(Record):
    name: str
    number: int = 0
    nick: str | None = None

    def key(self) -> str:
        return f"{self.name}/{self.number}"


def by_first_letter(key: str) -> int:
    return ord(key[0]) - ord("a")


class Own:
    name = "own-1"

    def hash(self, key: str) -> int:
        return len(key)


@pytest.mark.row("R04")
@pytest.mark.parametrize(
    ("hasher", "numbers"),
    [
        # Never change these: events of one key would move, and lose their order.
        (None, [3421780262, 1532655789, 1790921346]),
        ("crc32", [3421780262, 1532655789, 1790921346]),
        ("blake2", [9111887879481234737, 10358217578130537872, 16667848380713045890]),
        ("xxh64", [10139926970967174787, 11948966515561655149, 1750302349509622455]),
    ],
)
def test_the_numbers_of_keys_never_change(hasher: str | None, numbers: list[int]) -> None:
    found = find_hasher(hasher)
    assert [found.hash(key) for key in ("123456789", "ä/ö", 7)] == numbers
    assert found.hash(b"123456789") == found.hash(123456789) == numbers[0]


@pytest.mark.row("R03")
@pytest.mark.parametrize("text", ["{}", "user:{}", "{:08}"])
def test_keys_spread_evenly(text: str) -> None:
    route = RecordRoute(Customer, "name")
    records = (Customer(name=text.format(number)) for number in range(16_000))
    counts = Counter(route.partition(record, 16) for record in records)
    assert len(counts) == 16
    # 1,000 each; random ones would leave 850 to 1,150 once in 100,000 times.
    assert min(counts.values()) > 850
    assert max(counts.values()) < 1_150


@pytest.mark.row("R03")
def test_own_hashers() -> None:
    route = RecordRoute(Customer, "name", by_first_letter)
    assert [route.partition(Customer(name=name), 3) for name in ("ada", "bob", "cy", "di")] == [
        *(0, 1, 2, 0)
    ]
    assert route.name == f"{__name__}.by_first_letter"
    assert RecordRoute(Customer, "name", Own()).name == "own-1"
    assert RecordRoute(Customer, "name", Own()).partition(Customer(name="abcd"), 3) == 1


@pytest.mark.row("R02")
def test_a_function_gives_the_key() -> None:
    route = RecordRoute(Customer, Customer.key)
    assert route.partition(Customer(name="a", number=2), 8) == find_hasher(None).hash("a/2") % 8


@pytest.mark.row("R02")
@pytest.mark.parametrize(
    ("by", "reason"),
    [
        ("nome", "partition_by='nome': Customer has no such attribute; it has name, number, nick"),
        (7, "partition_by=7 must be the name of an attribute of Customer, or a function"),
    ],
)
def test_a_key_that_no_record_has_is_refused(by: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        RecordRoute(Customer, by)


@pytest.mark.row("R02")
@pytest.mark.parametrize("kind", [bool, float, tuple[int, int], datetime, None])
def test_an_attribute_whose_type_has_no_keys_is_refused(kind: Any) -> None:
    model = create_model("Odd", __base__=Record, key=(kind, ...))
    with pytest.raises(ConfigurationError, match=r"Odd\.key has the type .*: use a string"):
        RecordRoute(model, "key")
    assert RecordRoute(model, "key", by_first_letter).name


@pytest.mark.parametrize(
    ("key", "data"),
    [
        ("ä", "ä".encode()),
        (b"\xff", b"\xff"),
        (-7, b"-7"),
        (10**30, b"1" + b"0" * 30),
        (UUID(int=5), b"00000000-0000-0000-0000-000000000005"),
        (Shape.ROUND, b"round"),
        (Number.ONE, b"1"),
        ("\ud800", b"\xed\xa0\x80"),
    ],
)
def test_keys_as_bytes(key: object, data: bytes) -> None:
    assert key_bytes(key) == data


@pytest.mark.parametrize("key", [None, True, 1.5, ("a", 1), [1], object()])
def test_keys_that_have_no_one_form_are_refused(key: object) -> None:
    with pytest.raises(InvalidArguments, match="cannot be the key of an event"):
        key_bytes(key)


def test_records_of_another_type_are_named() -> None:
    given: Any = {"name": "ann"}
    with pytest.raises(InvalidArguments, match=r"are Customer, not \{'name': 'ann'\}"):
        RecordRoute(Customer, "name").partition(given, 4)


def test_a_record_without_a_key_names_what_it_is_partitioned_by() -> None:
    with pytest.raises(InvalidArguments, match="Customer, partitioned by nick: None cannot be"):
        RecordRoute(Customer, "nick").partition(Customer(name="a"), 4)
    with pytest.raises(InvalidArguments, match=r"by name with the hasher .*letter.* IndexError"):
        RecordRoute(Customer, "name", by_first_letter).partition(Customer(name=""), 4)


@pytest.mark.parametrize(
    ("hasher", "reason"),
    [
        ("md5", "there is no hasher 'md5': use crc32, blake2, xxh64, "),
        (7, "7 is not a hasher"),
        (lambda key: 1, "has no name that can be stored with the stream"),
    ],
)
def test_an_invalid_hasher_is_refused(hasher: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        find_hasher(hasher)

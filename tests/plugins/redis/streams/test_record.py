"""Records: what they may have, and what is refused before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, Field, create_model

from chancy.errors import ConfigurationError, InvalidArguments, PayloadTooLarge
from chancy.plugins.redis.streams.encoding.codecs import UnreadableRecord
from chancy.plugins.redis.streams.encoding.record_coding import RecordCoding
from chancy.plugins.redis.streams.model.record import Record


class Item(Record):
    name: str
    count: int = Field(gt=0)


class Order(Record):
    order_id: int
    items: list[Item] = Field(default_factory=list)
    at: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Tick(Record, primitive=True):
    symbol: str
    price: float
    size: int = 1
    open: bool = True
    raw: bytes = b""


class Plain(BaseModel):
    """A record that does not derive from `Record`."""

    text: str


@pytest.mark.row("R01")
def test_attributes_of_a_primitive_record_are_fields() -> None:
    coding = RecordCoding(Tick)
    tick = Tick(symbol="é", price=0.1, size=-3, open=False, raw=b"\xff\x00")
    fields = coding.encode(tick)
    assert fields == [
        *(b"symbol", "é".encode()),
        *(b"price", b"0.1"),
        *(b"size", b"-3"),
        *(b"open", b"0"),
        *(b"raw", b"\xff\x00"),
    ]
    assert coding.decode(fields) == tick
    assert coding.name == "primitive"


@pytest.mark.parametrize("price", [float("inf"), float("-inf"), 1e308, 5e-324, -0.0])
def test_numbers_of_primitive_records_are_exact(price: float) -> None:
    coding = RecordCoding(Tick)
    assert coding.decode(coding.encode(Tick(symbol="a", price=price))).price == price


@pytest.mark.row("R01")
@pytest.mark.parametrize("kind", [list[int], datetime, int | None, Item])
def test_a_primitive_record_has_scalars_only(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Bad\.wrong has the type .*primitive=True"):
        create_model("Bad", __base__=Record, __cls_kwargs__={"primitive": True}, wrong=(kind, ...))


def test_a_primitive_record_has_its_own_names() -> None:
    with pytest.raises(ConfigurationError, match=r"Named\.name has the alias 'n'"):
        create_model("Named", __base__=Tick, name=(str, Field(alias="n")))


def test_a_record_below_a_primitive_one_is_primitive() -> None:
    class Trade(Tick):
        buyer: int

    assert RecordCoding(Trade).name == "primitive"
    with pytest.raises(ConfigurationError, match=r"Wrong\.buyers"):
        create_model("Wrong", __base__=Tick, buyers=(list[int], ...))


def test_any_model_of_pydantic_is_a_record() -> None:
    coding = RecordCoding(Plain)
    assert coding.decode(coding.encode(Plain(text="x"))) == Plain(text="x")


def test_a_class_that_is_no_model_is_refused_as_a_record() -> None:
    with pytest.raises(ConfigurationError, match="use a pydantic model"):
        RecordCoding(dict)  # type: ignore[type-var]


def test_mismatches_are_named_by_field() -> None:
    coding = RecordCoding(Order)
    with pytest.raises(
        InvalidArguments, match=r"not a valid Order: items\.0\.count: .*greater than 0"
    ):
        coding.check_json('{"order_id": 1, "items": [{"name": "a", "count": 0}]}')
    with pytest.raises(InvalidArguments, match="not a valid Order: order_id: Field required"):
        coding.check_json("{}")
    assert coding.check_json('{"order_id": "1"}') == Order(order_id=1)


def test_errors_do_not_contain_values() -> None:
    with pytest.raises(InvalidArguments) as refused:
        RecordCoding(Order).check_json('{"order_id": "hunter2"}')
    assert "hunter2" not in str(refused.value)


def test_a_record_that_was_changed_since_is_refused() -> None:
    item = Item(name="a", count=1)
    item.count = 0
    with pytest.raises(InvalidArguments, match=r"not a valid Item: count: .*greater than 0"):
        RecordCoding(Item).encode(item)
    item.count = "many"  # type: ignore[assignment]
    with pytest.raises(InvalidArguments, match=r"not a valid Item: count: .*integer"):
        RecordCoding(Item).encode(item)
    tick = Tick(symbol="a", price=1.0)
    tick.size = "b"  # type: ignore[assignment]
    with pytest.raises(InvalidArguments, match=r"not a valid Tick: size: .*integer"):
        RecordCoding(Tick).encode(tick)


def test_another_record_is_refused() -> None:
    with pytest.raises(InvalidArguments, match=r"Item\(.*\) is not of type Order"):
        RecordCoding(Order).encode(Item(name="a", count=1))  # type: ignore[arg-type]


def test_a_record_that_could_not_be_read_again_is_refused() -> None:
    class Secret(Record):
        shown: str
        hidden: str = Field(exclude=True)

    with pytest.raises(
        InvalidArguments, match=r"could not be decoded after .* hidden: Field required"
    ):
        RecordCoding(Secret).encode(Secret(shown="a", hidden="b"))


def test_a_large_record_is_refused() -> None:
    coding = RecordCoding(Plain, max_bytes=100)
    coding.encode(Plain(text="x" * 80))
    with pytest.raises(PayloadTooLarge, match="a Plain takes 111 bytes as json, the limit is 100"):
        coding.encode(Plain(text="x" * 100))


@pytest.mark.row("R23")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([b"data.json", b"{"], "not a valid Order: Invalid JSON"),
        ([b"data.json", b'{"order_id": "x"}'], "not a valid Order: order_id: "),
        ([b"data.json", b"\xff"], "not a valid Order: Invalid JSON"),
        ([b"data.json.gzip", b"no gzip"], "cannot be read as Order: error: "),
        ([b"data.pickle", b"x"], r"encoded as 'pickle'.*there is no codec 'pickle'.*reads="),
        ([b"data.json.brotli", b"x"], r"there is no compressor 'brotli'"),
        ([b"order_id", b"1"], r"has the fields 'order_id', none of which is an encoded Order"),
        ([b"a", b"1", b"b", b"2"], r"has the fields 'a, b'"),
        ([], "has the fields ''"),
    ],
)
def test_unreadable_input_gives_the_reason(fields: list[bytes], reason: str) -> None:
    with pytest.raises(UnreadableRecord, match=reason):
        RecordCoding(Order).decode(fields)


def test_a_record_that_became_primitive_reads_what_it_was() -> None:
    class Was(Record):
        symbol: str
        price: float

    written = RecordCoding(Was).encode(Was(symbol="a", price=1.5))
    assert RecordCoding(Tick).decode(written) == Tick(symbol="a", price=1.5)


@pytest.mark.row("R02")
def test_a_primitive_record_takes_no_codec() -> None:
    with pytest.raises(ConfigurationError, match="Tick is a primitive record, which is stored"):
        RecordCoding(Tick, codec="json")
    with pytest.raises(ConfigurationError, match="without codec"):
        RecordCoding(Tick, compressor="gzip")

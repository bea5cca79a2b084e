"""Codecs and compressors: by name, own ones, and what is read when they change."""

from __future__ import annotations

import builtins
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.encoding import compression
from chancy.plugins.redis.streams.encoding.codecs import UnreadableRecord, ValuesCodec
from chancy.plugins.redis.streams.encoding.compression import Gzip, Zstd
from chancy.plugins.redis.streams.encoding.record_coding import RecordCoding
from chancy.plugins.redis.streams.model.record import Record

ModelT = TypeVar("ModelT", bound=BaseModel)


class Colour(Enum):
    RED = "red"


class Part(Record):
    weight: Decimal
    made: date


class Everything(Record):
    """A value of each type that JSON lacks."""

    at: datetime
    took: timedelta
    id: UUID
    colour: Colour
    parts: list[Part]
    tags: set[str]
    pair: tuple[int, str]
    raw: bytes
    ratio: float
    counts: dict[int, str]
    big: int
    maybe: str | None = None


EVERYTHING = Everything(
    at=datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC),
    took=timedelta(seconds=1.5),
    id=UUID("12345678-1234-5678-1234-567812345678"),
    colour=Colour.RED,
    parts=[Part(weight=Decimal("1.10"), made=date(2026, 1, 1))],
    tags={"a", "ä"},
    pair=(1, "one"),
    raw=b"\x00\xff",
    ratio=float("inf"),
    counts={1: "one"},
    big=2**53 + 1,
)


class Text(Record):
    text: str


@dataclass
class Reversing:
    """A compressor that returns its input, and counts the calls."""

    name: str = "reverse"
    calls: int = 0

    def compress(self, data: bytes) -> bytes:
        self.calls += 1
        return data[::-1]

    def decompress(self, data: bytes) -> bytes:
        return data[::-1]


@dataclass
class Shouting:
    """A codec of an application."""

    name: str = "shout"

    def encode(self, record: BaseModel) -> bytes:
        return record.model_dump_json().upper().encode()

    def decode(self, data: bytes, model: type[ModelT]) -> ModelT:
        return model.model_validate_json(data.lower())


@pytest.mark.row("R01", "R07")
@pytest.mark.parametrize("compressor", [None, "gzip", "lz4", "zstd"])
@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_records_come_back_equal(codec: str, compressor: str | None) -> None:
    coding = RecordCoding(Everything, codec=codec, compressor=compressor)
    assert coding.name == (codec if compressor is None else f"{codec}.{compressor}")
    fields = coding.encode(EVERYTHING)
    assert fields[0] == b"data." + coding.name.encode()
    assert coding.decode(fields) == EVERYTHING


def test_a_strict_record_is_written_as_text_and_read_again() -> None:
    class Strict(Record, strict=True):
        at: datetime

    record = Strict(at=datetime(2026, 1, 1, tzinfo=UTC))
    for codec in ("json", "msgpack"):
        coding = RecordCoding(Strict, codec=codec)
        assert coding.decode(coding.encode(record)) == record


@pytest.mark.row("R07")
def test_json_is_compact_with_times_in_iso_8601() -> None:
    _, data = RecordCoding(Everything).encode(EVERYTHING)
    assert b" " not in data
    assert json.loads(data)["at"] == "2026-01-02T03:04:05.678901Z"


@pytest.mark.row("R07")
def test_own_codecs_and_compressors_are_called() -> None:
    compressor = Reversing()
    coding = RecordCoding(Text, codec=Shouting(), compressor=compressor)
    fields = coding.encode(Text(text="abc"))
    assert list(fields) == [b"data.shout.reverse", b'}"CBA":"TXET"{']
    assert coding.decode(fields) == Text(text="abc")
    assert compressor.calls == 1


def test_two_functions_make_a_codec() -> None:
    codec = ValuesCodec("plain", lambda value: json.dumps(value).encode(), json.loads)
    coding = RecordCoding(Text, codec=codec)
    assert list(coding.encode(Text(text="a"))) == [b"data.plain", b'{"text": "a"}']


@pytest.mark.row("R07")
def test_a_stream_that_changed_its_codec_reads_the_old_events() -> None:
    before = [
        RecordCoding(Text),
        RecordCoding(Text, codec="msgpack", compressor="zstd"),
        RecordCoding(Text, codec=Shouting(), compressor=Reversing()),
    ]
    now = RecordCoding(Text, compressor="lz4", reads=[Shouting(), Reversing()])
    for number, coding in enumerate(before):
        assert now.decode(coding.encode(Text(text=f"t{number}"))) == Text(text=f"t{number}")


def test_an_own_codec_that_is_gone_is_named() -> None:
    fields = RecordCoding(Text, codec=Shouting()).encode(Text(text="a"))
    with pytest.raises(UnreadableRecord, match=r"encoded as 'shout', which this .* reads="):
        RecordCoding(Text).decode(fields)


@pytest.mark.parametrize("compressor", ["gzip", "lz4", "zstd"])
def test_truncated_data_is_no_record(compressor: str) -> None:
    coding = RecordCoding(Text, compressor=compressor)
    name, data = coding.encode(Text(text="some text that is long enough to be cut" * 10))
    for end in (0, 5, len(data) // 2, len(data) - 1):
        with pytest.raises(UnreadableRecord):
            coding.decode([name, data[:end]])


@pytest.mark.parametrize("compressor", ["gzip", "lz4", "zstd"])
def test_a_bomb_does_not_go_off(compressor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    coding = RecordCoding(Text, compressor=compressor)
    fields = coding.encode(Text(text="a" * 100_000))
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED", 50_000)
    with pytest.raises(UnreadableRecord, match="more than 50,000 bytes when decompressed"):
        coding.decode(fields)


@pytest.mark.parametrize(
    ("given", "library"),
    [
        ({"codec": "msgpack"}, "msgpack"),
        ({"compressor": "lz4"}, "lz4"),
        ({"compressor": "zstd"}, "zstandard"),
    ],
)
def test_a_missing_library_names_what_installs_it(
    given: dict[str, Any], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = RecordCoding(Text, **given).encode(Text(text="a"))
    _miss(monkeypatch, library)
    with pytest.raises(ConfigurationError, match=rf"library {library},.*'chancy-queue\[codecs\]'"):
        RecordCoding(Text, **given)
    with pytest.raises(UnreadableRecord, match=rf"library {library},.*'chancy-queue\[codecs\]'"):
        RecordCoding(Text).decode(fields)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"codec": "pickle"}, "there is no codec 'pickle': use json, msgpack, or"),
        ({"codec": 7}, "7 is not a codec"),
        ({"compressor": "rar"}, "there is no compressor 'rar': use gzip, lz4, zstd, or"),
        ({"compressor": 7}, "7 is not a compressor"),
        ({"codec": Shouting("No Name")}, "'No Name' cannot be the name of a codec"),
        ({"compressor": Reversing("a.b")}, "'a.b' cannot be the name"),
        ({"reads": [7]}, "7 is not a compressor"),
    ],
)
def test_an_invalid_codec_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        RecordCoding(Text, **given)


@pytest.mark.parametrize("make", [lambda: Gzip(0), lambda: Zstd(23)])
def test_a_level_that_cannot_be_is_refused(make: Any) -> None:
    with pytest.raises(ConfigurationError, match="level="):
        make()


def _miss(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Make the import of a library fail."""
    import sys

    real = builtins.__import__

    def fail(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == library:
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **named)

    modules: Sequence[str] = [name for name in sys.modules if name.partition(".")[0] == library]
    for name in modules:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(builtins, "__import__", fail)

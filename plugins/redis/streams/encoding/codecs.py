"""Codecs, which encode records as bytes, with an optional compressor.

The name of an entry's field identifies them: ``data.json``, ``data.msgpack.zstd``. So a stream may
change its codec at any time: stored events are read with the codec that wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from chancy.errors import ChancyError, ConfigurationError
from chancy.plugins.redis.streams.encoding.compression import Compressor, find_compressor
from chancy.plugins.redis.streams.encoding.optional import builtin, imported
from chancy.text import shown

#: The default codec.
DEFAULT_CODEC = "json"
#: Prefix of the name of an encoding. No attribute of a record can have such a name.
PREFIX = b"data."

RecordT = TypeVar("RecordT", bound=BaseModel)
_NAME = re.compile(r"[a-z0-9_-]{1,32}")


class UnreadableRecord(ChancyError):
    """A stored event cannot be decoded. It stays in the stream, and the policy applies."""


@runtime_checkable
class Codec(Protocol):
    """Encodes records as bytes and decodes them. Must be thread-safe."""

    @property
    def name(self) -> str:
        """The name, 1 to 32 of ``a-z 0-9 _ -``; stored with every event that it encoded."""
        ...

    def encode(self, record: BaseModel) -> bytes:
        """Encode a record; raise any exception if that is not possible."""
        ...

    def decode(self, data: bytes, model: type[RecordT]) -> RecordT:
        """Decode a record; raise any exception if that is not possible."""
        ...


@dataclass(frozen=True, slots=True)
class JsonCodec:
    """Compact JSON as pydantic writes it: times in ISO 8601, no whitespace."""

    name: str = DEFAULT_CODEC

    def encode(self, record: BaseModel) -> bytes:
        # The method of the model creates a string first: 1.2 µs instead of 0.3.
        return record.__pydantic_serializer__.to_json(record, by_alias=True, warnings="error")

    def decode(self, data: bytes, model: type[RecordT]) -> RecordT:
        return cast(RecordT, model.__pydantic_validator__.validate_json(data))


@dataclass(frozen=True, slots=True)
class ValuesCodec:
    """A codec made from two functions: of the values of ``model_dump()``, and of bytes."""

    name: str
    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]

    def encode(self, record: BaseModel) -> bytes:
        return self.dumps(record.model_dump(by_alias=True, warnings="error"))

    def decode(self, data: bytes, model: type[RecordT]) -> RecordT:
        # Not strict, even for a strict model: types that the format lacks are stored as strings.
        return model.model_validate(self.loads(data), strict=False)


def _msgpack() -> Codec:
    msgpack = imported("msgpack", what="the codec 'msgpack'")

    def dumps(value: Any) -> bytes:
        # Types that MessagePack lacks are written as in JSON.
        return cast(bytes, msgpack.packb(value, default=to_jsonable_python))

    def loads(data: bytes) -> Any:
        return msgpack.unpackb(data, strict_map_key=False)

    return ValuesCodec("msgpack", dumps, loads)


_CODECS: Mapping[str, Callable[[], Codec]] = {"json": JsonCodec, "msgpack": _msgpack}


def find_codec(codec: str | Codec | None) -> Codec:
    """Return the codec of a name, or a custom codec.

    :raises ConfigurationError: the name is unknown, its library is missing, or the object is not a
        codec.
    """
    if codec is None:
        return JsonCodec()
    if isinstance(codec, Codec):
        return codec
    methods = "encode(record) and decode(data, model)"
    others = f"an object with a name and the methods {methods}"
    return builtin(codec, _CODECS, what="codec", others=others)


@dataclass(frozen=True, slots=True)
class Encoding:
    """A codec with its compressor, and the name of their field."""

    codec: Codec
    compressor: Compressor | None = None
    field: bytes = field(init=False)

    def __post_init__(self) -> None:
        names = [self.codec.name, *([self.compressor.name] if self.compressor else [])]
        for name in names:
            if not _NAME.fullmatch(str(name)):
                raise ConfigurationError(
                    f"{shown(name)} cannot be the name of a codec or compressor: use 1 to 32 of "
                    "the characters a-z 0-9 _ -"
                )
        object.__setattr__(self, "field", PREFIX + ".".join(names).encode())

    def encode(self, record: BaseModel) -> bytes:
        """Encode a record."""
        data = self.codec.encode(record)
        return self.compressor.compress(data) if self.compressor else data

    def decode(self, data: bytes, model: type[RecordT]) -> RecordT:
        """Decode a record."""
        plain = self.compressor.decompress(data) if self.compressor else data
        return self.codec.decode(plain, model)


class Encodings:
    """The encoding that a stream writes, and all that it can read.

    :param codec: by name, or a custom codec; the same for ``compressor``.
    :param reads: custom codecs and compressors that wrote events which may still be stored.
    :raises ConfigurationError: one of them is not valid.
    """

    def __init__(
        self,
        codec: str | Codec | None = None,
        compressor: str | Compressor | None = None,
        reads: Iterable[Codec | Compressor] = (),
    ) -> None:
        self.written = Encoding(
            find_codec(codec), None if compressor is None else find_compressor(compressor)
        )
        self._codecs: dict[str, Codec] = {}
        self._compressors: dict[str, Compressor] = {}
        for own in reads:
            if isinstance(own, Codec):
                self._codecs[own.name] = own
            else:
                compressing = find_compressor(own)
                self._compressors[compressing.name] = compressing
        self._codecs[self.written.codec.name] = self.written.codec
        if self.written.compressor:
            self._compressors[self.written.compressor.name] = self.written.compressor
        # Holds readable encodings only, so its size is bounded by the known codecs.
        self._known = {self.written.field: self.written}

    def of(self, field: bytes) -> Encoding:
        """Return the encoding that wrote a field of this name.

        :raises UnreadableRecord: this process does not have the encoding.
        """
        found = self._known.get(field)
        if found is None:
            found = self._known[field] = self._look_up(field)
        return found

    def _look_up(self, field: bytes) -> Encoding:
        name = field.removeprefix(PREFIX).decode(errors="replace")
        codec, _, compressor = name.partition(".")
        try:
            return Encoding(
                self._codecs.get(codec) or find_codec(codec),
                (self._compressors.get(compressor) or find_compressor(compressor))
                if compressor
                else None,
            )
        except ConfigurationError as error:
            raise UnreadableRecord(
                f"an event was encoded as {shown(name)}, which this process cannot read: {error}; "
                "pass former custom codecs and compressors of the stream in reads="
            ) from None

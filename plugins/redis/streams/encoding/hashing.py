"""Partitioning of records: the same in every process, version and language.

The partition is ``hash(key) % partitions``. Builtin hashers use a key as bytes: a string as UTF-8,
an integer as its decimal digits, a UUID as its usual string, bytes as they are. So the integer 7
and the string "7" share a partition, as programs that only see strings expect.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from operator import attrgetter
from types import NoneType
from typing import Any, Generic, Protocol, get_origin, runtime_checkable
from uuid import UUID

from chancy.errors import ConfigurationError, InvalidArguments
from chancy.plugins.redis.streams.encoding.codecs import RecordT
from chancy.plugins.redis.streams.encoding.optional import builtin, imported
from chancy.text import shown

#: The key by which events are partitioned.
Key = str | int | bytes | UUID

#: Types of attributes that cannot be keys.
_NO_KEYS = (bool, float, tuple, datetime, NoneType)

#: The name of the default hasher.
DEFAULT_HASHER = "crc32"


@runtime_checkable
class Hasher(Protocol):
    """Maps the key of an event to an integer of any size, always the same for the same key."""

    @property
    def name(self) -> str:
        """The name, stored with the stream so that a worker with another hasher is refused."""
        ...

    def hash(self, key: Any) -> int:
        """Return the integer of a key, which is passed as the record has it."""
        ...


#: A hasher by name, a custom hasher, or a function of the key; None: the default.
HasherOption = str | Hasher | Callable[[Any], int] | None


@dataclass(frozen=True, slots=True)
class BytesHasher:
    """A hasher of the bytes of a key."""

    name: str
    function: Callable[[bytes], int]

    def hash(self, key: Any) -> int:
        return self.function(key_bytes(key))


@dataclass(frozen=True, slots=True)
class FunctionHasher:
    """A hasher made from an application's function, identified by its module and name."""

    name: str
    function: Callable[[Any], int]

    def hash(self, key: Any) -> int:
        return self.function(key)


def key_bytes(key: object) -> bytes:
    """Return a key as bytes for the builtin hashers.

    :raises InvalidArguments: its type has no unique representation.
    """
    if type(key) is str:  # the common case; the rest takes 0.3 µs
        return key.encode("utf-8", "surrogatepass")
    if isinstance(key, Enum):
        key = key.value
    match key:
        case str():
            return key.encode("utf-8", "surrogatepass")
        case bytes():
            return key
        case bool():
            pass  # an int only technically: two partitions would get all events
        case int():
            return b"%d" % key
        case UUID():
            return str(key).encode()
        case _:
            pass
    raise InvalidArguments(
        f"{shown(key)} cannot be the key of an event: it must be a string, an integer, bytes or a "
        "UUID; pass a function that returns one of these as partition_by"
    )


def _blake2(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def _xxh64() -> Hasher:
    return BytesHasher("xxh64", imported("xxhash", what="the hasher 'xxh64'").xxh64_intdigest)


# crc32 takes 0.1 µs per key, blake2 0.5 µs. Every language has crc32, so every program can compute
# the partition of a key.
_BUILTIN: Mapping[str, Callable[[], Hasher]] = {
    "crc32": lambda: BytesHasher("crc32", zlib.crc32),
    "blake2": lambda: BytesHasher("blake2", _blake2),
    "xxh64": _xxh64,
}


def find_hasher(hasher: HasherOption) -> Hasher:
    """Return the hasher of a name, a custom hasher, or a function as a hasher.

    :raises ConfigurationError: the name is unknown, its library is missing, or the object is not a
        hasher.
    """
    if hasher is None:
        return _BUILTIN[DEFAULT_HASHER]()
    if isinstance(hasher, Hasher):
        if not 1 <= len(str(hasher.name)) <= 255:
            raise ConfigurationError(
                f"{shown(hasher.name)} cannot be the name of a hasher: it must be a string of 1 to "
                "255 characters, which is stored with the stream"
            )
        return hasher
    if callable(hasher):
        return FunctionHasher(_path(hasher), hasher)
    others = "a function of the key, or an object with a name and a method hash(key)"
    return builtin(hasher, _BUILTIN, what="hasher", others=others)


def _path(function: Callable[[Any], int]) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    path = f"{getattr(function, '__module__', type(function).__module__)}.{name}"
    if "<lambda>" in path:
        raise ConfigurationError(
            f"the hasher {path} has no name that can be stored with the stream: define it with def"
        )
    return path


class RecordRoute(Generic[RecordT]):
    """Computes the partition of a record.

    :param by: the name of an attribute, or a function of the record that returns the key.
    :param hasher: by name, a function of the key, or a custom hasher; None: ``crc32``.
    :raises ConfigurationError: the record has no such attribute, or the hasher is not valid.
    """

    def __init__(
        self,
        model: type[RecordT],
        by: str | Callable[[RecordT], Key],
        hasher: HasherOption = None,
    ) -> None:
        self._model = model
        self._by = by if isinstance(by, str) else getattr(by, "__qualname__", shown(by))
        self._hasher = find_hasher(hasher)
        self._hash = self._hasher.hash
        if isinstance(by, str):
            if by not in model.model_fields and by not in model.model_computed_fields:
                raise ConfigurationError(
                    f"partition_by={shown(by)}: {model.__qualname__} has no such attribute; it has "
                    f"{', '.join(model.model_fields) or 'none'}"
                )
            self._check_type(by)
            self._key: Callable[[RecordT], Any] = attrgetter(by)
        elif callable(by):
            self._key = by
        else:
            raise ConfigurationError(
                f"partition_by={shown(by)} must be the name of an attribute of "
                f"{model.__qualname__}, or a function of a record"
            )

    def _check_type(self, by: str) -> None:
        """Refuse an attribute of a type none of whose values the hasher takes."""
        field = self._model.model_fields.get(by)
        kind = field and (get_origin(field.annotation) or field.annotation)
        if isinstance(self._hasher, BytesHasher) and kind in _NO_KEYS:
            raise ConfigurationError(
                f"partition_by={shown(by)}: {self._model.__qualname__}.{by} has the type "
                f"{kind.__name__}, which cannot be the key of an event: use a string, an integer, "
                "bytes or a UUID, or pass a function that returns one"
            )

    @property
    def name(self) -> str:
        """The name of the hasher, which is stored with the stream."""
        return self._hasher.name

    def partition(self, record: RecordT, partitions: int) -> int:
        """Return the number of the partition of a record, from 0.

        :raises InvalidArguments: its key cannot be hashed; the message names the key.
        """
        try:
            return self._hash(self._key(record)) % partitions
        except InvalidArguments as error:
            raise InvalidArguments(
                f"{self._model.__qualname__}, partitioned by {self._by}: {error}"
            ) from None
        except Exception as error:
            value: object = record
            if not isinstance(value, self._model):
                raise InvalidArguments(
                    f"the records of this stream are {self._model.__qualname__}, "
                    f"not {shown(value)}: create one from it"
                ) from None
            raise InvalidArguments(
                f"the partition of a {self._model.__qualname__} by {self._by} with the hasher "
                f"{self.name} cannot be computed: {type(error).__name__}: {error}"
            ) from error

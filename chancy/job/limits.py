"""What one attempt may take: time and memory. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

from chancy.errors import ConfigurationError
from chancy.text import shown

#: The longest time limit, in seconds: a year.
MAX_TIME_S = 365 * 86_400.0
#: A process with less than this cannot even start, in bytes.
MIN_MEMORY_BYTES = 32 * 2**20


class LimitType(StrEnum):
    """What a limit is on."""

    TIME = "time_s"
    MEMORY = "memory_bytes"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of an attempt: ``Limit.time(30)`` or ``Limit.memory(512 * 2**20)``.

    :param value: seconds from the attempt's own start, or bytes of resident memory of the process
        that runs it.
    :raises ConfigurationError: a value that cannot be kept to.
    """

    Type = LimitType

    type: LimitType
    value: float

    def __post_init__(self) -> None:
        match self.type:
            case LimitType.TIME:
                low, high, unit = 0.001, MAX_TIME_S, "seconds"
            case LimitType.MEMORY:
                low, high, unit = float(MIN_MEMORY_BYTES), float(2**62), "bytes (32 MiB and more)"
            case _:
                assert_never(self.type)
        value: object = self.value
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not low <= value <= high  # which NaN is not, and an int of any size can be asked
        ):
            raise ConfigurationError(
                f"a limit of {self.type.name.lower()} is from {low:,.10g} to {high:,.10g} {unit}, "
                f"not {shown(value)}"
            )

    @classmethod
    def time(cls, seconds: float) -> Limit:
        """The attempt is stopped so many seconds after it started."""
        return cls(LimitType.TIME, seconds)

    @classmethod
    def memory(cls, size: int) -> Limit:
        """The attempt is stopped when its process holds more bytes than ``size``."""
        return cls(LimitType.MEMORY, size)


class Limits(NamedTuple):
    """The limits of an attempt; None is no limit."""

    time_s: float | None = None
    memory_bytes: int | None = None

    @classmethod
    def of(cls, limits: Iterable[Limit]) -> Limits:
        """The limits by type."""
        found = {limit.type: limit.value for limit in limits}
        memory = found.get(LimitType.MEMORY)
        return cls(found.get(LimitType.TIME), None if memory is None else int(memory))

    def over(self, other: Limits) -> Limits:
        """These limits, and those of the other where there is none here."""
        return Limits(
            other.time_s if self.time_s is None else self.time_s,
            other.memory_bytes if self.memory_bytes is None else self.memory_bytes,
        )


NO_LIMITS = Limits()


def check_limits(values: object, where: str) -> tuple[Limit, ...]:
    """Limits as a tuple. Raises `ConfigurationError` for what is none, and for two of a type."""
    if values is None:
        return ()
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise ConfigurationError(f"{where}: limits must be a list of Limit, not {shown(values)}")
    limits: list[Limit] = []
    for one in values:
        if not isinstance(one, Limit):
            raise ConfigurationError(
                f"{where}: {shown(one)} is not a Limit: use Limit.time(seconds), "
                "Limit.memory(bytes)"
            )
        if any(one.type is other.type for other in limits):
            raise ConfigurationError(f"{where}: there are two limits of {one.type.name.lower()}")
        limits.append(one)
    return tuple(limits)


@lru_cache(maxsize=1_000)
def encode_limits(limits: tuple[Limit, ...]) -> str | None:
    """The limits as the JSON text that is stored; None for none."""
    if not limits:
        return None
    return json.dumps({limit.type.value: limit.value for limit in limits})


@lru_cache(maxsize=1_000)
def decode_limits(text: str | None) -> Limits:
    """The limits of a row. What cannot be a limit there is none."""
    try:
        stored = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return NO_LIMITS
    if not isinstance(stored, dict):
        return NO_LIMITS
    return Limits.of(limits_from(stored))


def limits_from(stored: dict[str, Any]) -> tuple[Limit, ...]:
    """The limits in a stored object; others are left out."""
    limits: list[Limit] = []
    for one in LimitType:
        try:
            if stored.get(one.value) is not None:
                limits.append(Limit(one, stored[one.value]))
        except ConfigurationError:
            continue
    return tuple(limits)

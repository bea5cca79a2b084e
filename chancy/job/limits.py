"""Limits of one attempt: time and memory. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, assert_never

from chancy.checks import check_instances
from chancy.errors import ConfigurationError
from chancy.text import shown

#: The maximum time limit, in seconds: a year.
MAX_TIME_S = 365 * 86_400.0
#: The minimum memory limit, in bytes. A process with less cannot start.
MIN_MEMORY_BYTES = 32 * 2**20


class LimitType(StrEnum):
    """The resource that a limit applies to."""

    TIME = "time_s"
    MEMORY = "memory_bytes"


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of an attempt: ``Limit.time(30)`` or ``Limit.memory(512 * 2**20)``.

    :param value: seconds from the start of the attempt, or bytes of resident memory of the process
        that runs it.
    :raises ConfigurationError: the value is out of range.
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
            or not low <= value <= high  # also rejects NaN; works for an int of any size
        ):
            raise ConfigurationError(
                f"a limit of {self.type.name.lower()} must be from {low:,.10g} to {high:,.10g} "
                f"{unit}, not {shown(value)}"
            )

    @classmethod
    def time(cls, seconds: float) -> Limit:
        """Stop the attempt this many seconds after it started."""
        return cls(LimitType.TIME, seconds)

    @classmethod
    def memory(cls, size: int) -> Limit:
        """Stop the attempt when its process holds more than ``size`` bytes."""
        return cls(LimitType.MEMORY, size)


class Limits(NamedTuple):
    """The limits of an attempt; None means no limit."""

    time_s: float | None = None
    memory_bytes: int | None = None

    @classmethod
    def of(cls, limits: Iterable[Limit]) -> Limits:
        """Collect limits by type."""
        found = {limit.type: limit.value for limit in limits}
        memory = found.get(LimitType.MEMORY)
        return cls(found.get(LimitType.TIME), None if memory is None else int(memory))

    def over(self, other: Limits) -> Limits:
        """Return these limits, with the other's values for limits that are not set."""
        return Limits(
            other.time_s if self.time_s is None else self.time_s,
            other.memory_bytes if self.memory_bytes is None else self.memory_bytes,
        )


NO_LIMITS = Limits()


def check_limits(values: object, where: str) -> tuple[Limit, ...]:
    """Return limits as a tuple.

    :raises ConfigurationError: an item is not a `Limit`, or two have the same type.
    """
    if values is None:
        return ()
    hint = "use Limit.time(seconds), Limit.memory(bytes)"
    limits = check_instances(values, Limit, f"{where}: limits", hint)
    for limit in limits:
        if sum(limit.type is other.type for other in limits) > 1:
            raise ConfigurationError(f"{where}: there are two limits of {limit.type.name.lower()}")
    return limits


@lru_cache(maxsize=1_000)
def encode_limits(limits: tuple[Limit, ...]) -> str | None:
    """Return limits as the JSON string that is stored; None if there are none."""
    if not limits:
        return None
    return json.dumps({limit.type.value: limit.value for limit in limits})


@lru_cache(maxsize=1_000)
def decode_limits(text: str | None) -> Limits:
    """Return the limits of a row. Invalid entries are ignored."""
    try:
        stored = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return NO_LIMITS
    if not isinstance(stored, dict):
        return NO_LIMITS
    return Limits.of(limits_from(stored))


def limits_from(stored: Mapping[str, Any]) -> tuple[Limit, ...]:
    """Return the valid limits of a stored object; invalid entries are ignored."""
    limits: list[Limit] = []
    for kind in LimitType:
        try:
            if stored.get(kind.value) is not None:
                limits.append(Limit(kind, stored[kind.value]))
        except ConfigurationError:
            continue
    return tuple(limits)

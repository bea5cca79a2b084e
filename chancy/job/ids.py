"""Ids of jobs: UUIDv7, made where the job is pushed.

An id that is known before the push makes the push repeatable, and its time in front keeps the
indexes dense at their right edge (RFC 9562, section 5.7).
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID, SafeUUID

_VERSION = 7 << 76
_VARIANT = 2 << 62
_RANDOM_MASK = (1 << 62) - 1


class _Sequence:
    """Milliseconds and a counter of 12 bits within them, never going back."""

    def __init__(self) -> None:
        self.last = 0

    def next(self, count: int) -> int:
        """The first of so many numbers in a row."""
        now = (time.time_ns() // 1_000_000) << 12
        first = now if now > self.last else self.last + 1
        self.last = first + count - 1
        return first


_sequence = _Sequence()


def _maker() -> Callable[[int], UUID]:
    """What makes a UUID of its bits: as the constructor, at less than half the price (0.3 µs).

    It sets the slots. Where a UUID has others it is the constructor.
    """
    slots = [UUID.__dict__.get(name) for name in ("int", "is_safe")]
    if not all(hasattr(slot, "__set__") for slot in slots):
        return lambda bits: UUID(int=bits)
    put_bits, put_safe = (slot.__set__ for slot in slots if slot is not None)
    new, unknown = object.__new__, SafeUUID.unknown

    def make(bits: int) -> UUID:
        id: Any = new(UUID)
        put_bits(id, bits)
        put_safe(id, unknown)
        found: UUID = id
        return found

    return make


_make = _maker()


def new_id() -> UUID:
    """A new UUIDv7; within one process each is greater than the one before."""
    ticks = _sequence.next(1)
    return _make(_bits(ticks, int.from_bytes(os.urandom(8))))


def new_ids(count: int) -> list[UUID]:
    """New UUIDv7 in ascending order, at half the price for each."""
    first = _sequence.next(count)
    randoms = struct.unpack(f"={count}Q", os.urandom(8 * count))
    return [_make(_bits(ticks, random)) for ticks, random in enumerate(randoms, first)]


def _bits(ticks: int, random: int) -> int:
    """Milliseconds and counter, and 64 bits of which 62 are used, in the places of a UUIDv7."""
    return (
        (ticks >> 12) << 80 | _VERSION | (ticks & 0xFFF) << 64 | _VARIANT | (random & _RANDOM_MASK)
    )

"""Ids of jobs: UUIDv7, made where the job is pushed.

An id that is known before the push makes the push repeatable, and its time in front keeps the
indexes dense at their right edge (RFC 9562, section 5.7).
"""

from __future__ import annotations

import os
import time
from uuid import UUID

_VERSION = 7 << 76
_VARIANT = 2 << 62
_RANDOM_MASK = (1 << 62) - 1


class _Sequence:
    """Milliseconds and a counter of 12 bits within them, never going back."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        now = (time.time_ns() // 1_000_000) << 12
        self.last = now if now > self.last else self.last + 1
        return self.last


_sequence = _Sequence()


def new_id() -> UUID:
    """A new UUIDv7; within one process each is greater than the one before."""
    ticks = _sequence.next()
    random = int.from_bytes(os.urandom(8)) & _RANDOM_MASK
    return UUID(int=(ticks >> 12) << 80 | _VERSION | (ticks & 0xFFF) << 64 | _VARIANT | random)

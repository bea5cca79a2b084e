"""Portions: how many events a round trip asks for, by what those that came of late weigh.

No read of Redis has a bound in bytes. A round trip has one deadline, and what comes too late for
it is asked for again: as many again would be too late again, for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chancy.plugins.redis.streams.processing.partition import OwnedPartition

#: Bytes that one round trip asks for; one event at least.
TRIP_BYTES = 8 * 1024 * 1024
#: Where nothing was read yet: events of a partition that are asked for, and what each may weigh.
_FIRST, _UNKNOWN = 8, 128 * 1024
_LEAST_BYTES = 1024


class FetchBudget:
    """What the round trips of one processor ask for."""

    def __init__(self, timeout_s: float) -> None:
        self._soon_s = timeout_s / 4
        self._bytes = TRIP_BYTES
        # Of all partitions, for those that have read nothing yet.
        self._mean = 0.0

    def share(self, partitions: Sequence[OwnedPartition[Any]]) -> Sequence[int]:
        """How many events a round trip asks for of each partition; 0 for those that must wait for the
        next one."""
        left, given = float(self._bytes), False
        counts = []
        for partition in partitions:
            count = partition.room if partition.more and not partition.closing else 0
            if count:
                mean = partition.mean or self._mean
                if not mean:
                    count, mean = min(count, _FIRST), _UNKNOWN
                count = min(count, int(left / mean)) or (0 if given else 1)
                # The first may weigh more than is left, and a read of less than none has no bound.
                left = max(0.0, left - count * mean)
                given = True
            counts.append(count)
        return counts

    def weigh(
        self, partition: OwnedPartition[Any], entries: Sequence[tuple[Any, Sequence[bytes]]]
    ) -> None:
        """Note what has come of a partition."""
        partition.weigh(sum(sum(map(len, fields)) for _, fields in entries) / len(entries))
        self._mean = max(partition.mean, self._mean * 0.9)

    def late(self, partitions: Sequence[OwnedPartition[Any]], counts: Sequence[int]) -> None:
        """No answer has come to a round trip: ask for less, whatever the reason was."""
        asked = sum(
            count * (partition.mean or self._mean or _UNKNOWN)
            for partition, count in zip(partitions, counts, strict=True)
        )
        if asked:
            self._bytes = max(_LEAST_BYTES, min(self._bytes, int(asked)) // 4)

    def answered(self, took_s: float) -> None:
        """One was answered: if that was soon, the next ones may ask for more."""
        if took_s < self._soon_s:
            self._bytes = min(TRIP_BYTES, self._bytes * 2)

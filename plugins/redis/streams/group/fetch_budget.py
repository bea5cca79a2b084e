"""The fetch budget: how many events a round trip requests, by the size of recent events.

A round trip has one deadline, and events that arrive too late are requested again: without a
smaller request, they would be too late for ever. If events are larger than the recent ones, the
script stops at twice the expected bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chancy.plugins.redis.streams.processing.partition import OwnedPartition

#: Bytes that one round trip requests; at least one event.
TRIP_BYTES = 8 * 1024 * 1024
#: Before the first read: events requested of a partition, and the assumed bytes of each.
_FIRST, _UNKNOWN = 8, 128 * 1024
_LEAST_BYTES = 1024


class FetchBudget:
    """The number of events that the round trips of one processor request."""

    def __init__(self, timeout_s: float) -> None:
        self._soon_s = timeout_s / 4
        self._bytes = TRIP_BYTES
        # The mean of all partitions, for those that have read nothing yet.
        self._mean = 0.0

    def share(self, partitions: Sequence[OwnedPartition[Any]]) -> Sequence[int]:
        """Return how many events to request of each partition; 0: wait for the next round trip."""
        left, assigned = float(self._bytes), False
        counts = []
        for partition in partitions:
            count = partition.room if partition.more and not partition.closing else 0
            if count:
                mean = partition.mean or self._mean
                if not mean:
                    count, mean = min(count, _FIRST), _UNKNOWN
                count = min(count, int(left / mean)) or (0 if assigned else 1)
                # One event may exceed the budget, and a negative count would read without limit.
                left = max(0.0, left - count * mean)
                assigned = True
            counts.append(count)
        return counts

    def most_bytes(self, partition: OwnedPartition[Any], count: int) -> int:
        """Return the bytes after which the script reads no more events of a partition."""
        return int(2 * count * self._expected(partition))

    def weigh(
        self, partition: OwnedPartition[Any], entries: Sequence[tuple[Any, Sequence[bytes]]]
    ) -> None:
        """Update the mean sizes with the entries read from a partition."""
        partition.weigh(sum(sum(map(len, fields)) for _, fields in entries) / len(entries))
        self._mean = max(partition.mean, self._mean * 0.9)

    def late(self, partitions: Sequence[OwnedPartition[Any]], counts: Sequence[int]) -> None:
        """Reduce the budget after a round trip without a reply, whatever the reason."""
        asked = sum(
            count * self._expected(partition)
            for partition, count in zip(partitions, counts, strict=True)
        )
        if asked:
            self._bytes = max(_LEAST_BYTES, min(self._bytes, int(asked)) // 4)

    def answered(self, took_s: float) -> None:
        """Raise the budget after a round trip that was answered quickly."""
        if took_s < self._soon_s:
            self._bytes = min(TRIP_BYTES, self._bytes * 2)

    def _expected(self, partition: OwnedPartition[Any]) -> float:
        return partition.mean or self._mean or _UNKNOWN

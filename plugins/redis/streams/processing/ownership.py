"""Leases of partitions. Each has an epoch, which every read and acknowledgement must present."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chancy.errors import BrokerError
from chancy.plugins.redis.streams.processing.failures import described, qualified
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.redis_client import RedisClient, Reply
from chancy.plugins.redis.transport.scripts import ScriptCall

logger = logging.getLogger("chancy.redis.streams")

#: Maximum dead letters of a partition and processor in Redis; the oldest are dropped and counted.
MAX_LETTERS = 10_000
#: Seconds between two log lines about dropped dead letters.
_REPORTED_S = 60.0
#: Maximum events that one script dead-letters; fewer if they are large.
_MOST_BURIED = 1_000


@dataclass(frozen=True, slots=True)
class Busy:
    """Another member owns the partition, for the given seconds unless it extends its lease."""

    left_s: float


@dataclass(frozen=True, slots=True)
class Parked:
    """The partition is quarantined until it is resumed."""


Claim = OwnedPartition[Any] | Busy | Parked | BrokerError


class Ownership:
    """The leases of this member on a processor's partitions."""

    def __init__(self, link: RedisClient, processor: Processor[Any], member: str) -> None:
        self._link = link
        self._processor = processor
        self._keys = processor.stream.keys
        self._group = processor.name
        self._member = member
        self._options = processor.options
        self._start = processor.options.start
        # Partitions that this member has acquired.
        self._started = set[int]()
        self._dropped = 0
        self._reported_at = float("-inf")

    def mark_started(self) -> None:
        """Record that the processor has started before, even if Redis has lost its groups.

        Events in a log have arrived since then: ``start="$"`` must not skip them.
        """
        if self._start == "$":
            self._start = "0"

    def _start_of(self, number: int) -> str:
        # If the partition has lost its data, its events have arrived since then.
        return "0" if self._start == "$" and number in self._started else self._start

    async def acquire(self, numbers: Collection[int]) -> Mapping[int, Claim]:
        """Try to acquire partitions that are free, expired, or owned by this member.

        :raises BrokerUnavailable: acquired partitions are held for one lease, and can be acquired
            again.
        """
        began = time.monotonic()
        lease_ms = round(self._options.lease_s * 1000)
        replies = await self._link.run_many(
            [
                ScriptCall(
                    "streams.acquire",
                    (
                        self._own(number),
                        self._keys.log(number),
                        self._keys.park(number, self._group),
                        self._keys.stat(number),
                    ),
                    (self._group, self._member, lease_ms, self._start_of(number)),
                )
                for number in numbers
            ]
        )
        deadline = began + self._options.lease_s
        return {
            number: self._claim(number, reply, deadline)
            for number, reply in zip(numbers, replies, strict=True)
        }

    def _claim(self, number: int, reply: Reply, deadline: float) -> Claim:
        match reply:
            case Exception():
                if not isinstance(reply, BrokerError):
                    raise reply
                return reply
            case [b"busy", left_ms]:
                return Busy(left_ms / 1000)
            case [b"parked"]:
                return Parked()
            case [b"owned", epoch, pending, last]:
                self._started.add(number)
                return OwnedPartition(
                    number,
                    epoch,
                    deadline,
                    prefetch=self._options.prefetch,
                    pending=pending,
                    last=last.decode(),
                    loop=asyncio.get_running_loop(),
                )
            case _:
                raise RuntimeError(f"unexpected reply of acquire.lua: {reply!r}")

    async def release(
        self, partitions: Collection[OwnedPartition[Any]]
    ) -> Sequence[bool | BrokerError]:
        """Acknowledge finished events and release partitions; False where another member owns one.

        :raises BrokerUnavailable: partitions that were not released are free when their leases end.
        """
        for partition in partitions:
            partition.releasing = True
        replies = await self._link.run_many(
            [
                ScriptCall(
                    "streams.release",
                    (self._own(partition.number), self._keys.log(partition.number)),
                    (self._group, self._member, partition.epoch, *partition.acked),
                )
                for partition in partitions
            ]
        )
        return [reply if isinstance(reply, BrokerError) else reply == 1 for reply in replies]

    async def park(self, partition: OwnedPartition[Any], error: BaseException) -> bool:
        """Quarantine and release a partition; return False if another member owns it."""
        xid = partition.taken[0].xid if partition.taken else ""
        partition.releasing = True
        try:
            parked = await self._link.run(
                "streams.park",
                (
                    self._own(partition.number),
                    self._keys.log(partition.number),
                    self._keys.park(partition.number, self._group),
                ),
                (
                    self._group,
                    self._member,
                    partition.epoch,
                    xid,
                    described(error),
                    *partition.acked,
                ),
            )
        except BaseException:
            partition.releasing = False
            raise
        return bool(parked == 1)

    async def halt(self, partition: OwnedPartition[Any], why: str) -> bool:
        """Report that a partition is halted here, or, without a reason, that it continues."""
        reported = await self._link.run(
            "streams.halt", (self._own(partition.number),), (self._member, partition.epoch, why)
        )
        return bool(reported == 1)

    async def bury(
        self, partition: OwnedPartition[Any], ids: Sequence[str], error: BaseException
    ) -> int | None:
        """Dead-letter and acknowledge events; return how many were pending and thus written.

        Returns None if another member owns the partition. Of more than 1,000 events, or large ones,
        the first may be written before another member takes the partition: they are not delivered
        again.
        """
        written = at = 0
        while at < len(ids):
            reply = await self._link.run(
                "streams.bury",
                (
                    self._own(partition.number),
                    self._keys.log(partition.number),
                    self._keys.dead(partition.number, self._group),
                    self._keys.stat(partition.number),
                ),
                (
                    self._group,
                    self._member,
                    partition.epoch,
                    MAX_LETTERS,
                    qualified(error),
                    *ids[at : at + _MOST_BURIED],
                ),
            )
            if reply[0] != b"ok":
                return None
            written += int(reply[1])
            at += int(reply[2])
            if reply[3]:
                self._report_dropped(int(reply[3]))
        return written

    def _report_dropped(self, count: int) -> None:
        """Log dropped dead letters of all partitions at once, and then once a minute."""
        self._dropped += count
        now = time.monotonic()
        if now - self._reported_at >= _REPORTED_S:
            logger.warning(
                "event_letters_dropped processor=%s count=%d most=%d: workers with a "
                "database file them, as does `chancy dead list`",
                self._processor.id,
                self._dropped,
                MAX_LETTERS,
            )
            self._reported_at, self._dropped = now, 0

    async def extend(
        self, partitions: Iterable[OwnedPartition[Any]], timeout_s: float | None = None
    ) -> Sequence[OwnedPartition[Any]]:
        """Extend the leases of partitions; return those that are lost and were not released.

        May be called in another loop than that of the partitions.
        """
        # Includes leases that ended by the local clock: Redis decides whether they are lost.
        held = list(partitions)
        began = time.monotonic()
        lease_ms = round(self._options.lease_s * 1000)
        replies = await self._link.run_many(
            [
                ScriptCall(
                    "streams.extend",
                    (self._own(partition.number),),
                    (self._member, partition.epoch, lease_ms),
                )
                for partition in held
            ],
            timeout_s=timeout_s,
        )
        lost = []
        for partition, reply in zip(held, replies, strict=True):
            if reply == 1:
                partition.extended(began + self._options.lease_s)
            elif reply == 0 and not partition.releasing:
                lost.append(partition)
        return lost

    def _own(self, number: int) -> str:
        return self._keys.own(number, self._group)

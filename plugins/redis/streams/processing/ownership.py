"""Ownership: leases of partitions, each in an epoch that every read and acknowledgement names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chancy.errors import BrokerError
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.script_client import Reply, ScriptClient, StreamCall

#: Dead letters of a partition and processor; the oldest make room, and are counted.
MAX_LETTERS = 10_000
#: Events that one script makes dead letters.
_MOST_BURIED = 1_000
#: Characters of an error that are kept.
_MOST_ERROR = 2_000


@dataclass(frozen=True, slots=True)
class Busy:
    """Another owns it for so many seconds more, unless it extends that."""

    left_s: float


@dataclass(frozen=True, slots=True)
class Parked:
    """Nobody may have it until it is resumed."""


Claim = OwnedPartition[Any] | Busy | Parked | BrokerError


class Ownership:
    """What this member owns of a processor's partitions."""

    def __init__(self, link: ScriptClient, processor: Processor[Any], member: str) -> None:
        self._link = link
        self._processor = processor
        self._keys = processor.stream.keys
        self._group = processor.name
        self._member = member
        self._options = processor.options
        self._start = processor.options.start

    def mark_started(self) -> None:
        """The processor has begun long ago, though Redis may have lost all that says so.

        What is in a log has come meanwhile: ``start="$"`` must not leave it out.
        """
        if self._start == "$":
            self._start = "0"

    async def acquire(self, numbers: Collection[int]) -> Mapping[int, Claim]:
        """Try to take partitions: those that are free, whose lease has ended, or that are ours.

        :raises BrokerUnavailable: what was taken is ours for a lease, and can be taken again.
        """
        began = time.monotonic()
        lease_ms = round(self._options.lease_s * 1000)
        replies = await self._link.call_many(
            [
                StreamCall(
                    "acquire",
                    (
                        self._own(number),
                        self._keys.log(number),
                        self._keys.park(number, self._group),
                        self._keys.stat(number),
                    ),
                    (self._group, self._member, lease_ms, self._start),
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
                raise RuntimeError(f"acquire.lua answered {reply!r}")

    async def release(
        self, partitions: Collection[OwnedPartition[Any]]
    ) -> Sequence[bool | BrokerError]:
        """Acknowledge what is done and give partitions back; False for what was not ours.

        :raises BrokerUnavailable: those that are not back are free when their leases end.
        """
        for partition in partitions:
            partition.given = True
        replies = await self._link.call_many(
            [
                StreamCall(
                    "release",
                    (self._own(partition.number), self._keys.log(partition.number)),
                    (self._group, self._member, partition.epoch, *partition.acked),
                )
                for partition in partitions
            ]
        )
        return [reply if isinstance(reply, BrokerError) else reply == 1 for reply in replies]

    async def park(self, partition: OwnedPartition[Any], error: BaseException) -> bool:
        """Quarantine a partition and give it back; False if it was not ours."""
        xid = partition.taken[0].xid if partition.taken else ""
        partition.given = True
        try:
            parked = await self._link.call(
                "park",
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
            partition.given = False
            raise
        return bool(parked == 1)

    async def halt(self, partition: OwnedPartition[Any], why: str) -> bool:
        """Say that a partition is halted here, or, with no reason, that it goes on."""
        told = await self._link.call(
            "halt", (self._own(partition.number),), (self._member, partition.epoch, why)
        )
        return bool(told == 1)

    async def bury(
        self, partition: OwnedPartition[Any], ids: Sequence[str], error: BaseException
    ) -> int | None:
        """Make events dead letters, which acknowledges them; None if the partition was not ours.

        Gives how many were written: those that were pending. Of more than a thousand the first
        ones may be written when another takes the partition: they do not come again.
        """
        written = 0
        for at in range(0, len(ids), _MOST_BURIED):
            reply = await self._link.call(
                "bury",
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
                    described(error),
                    *ids[at : at + _MOST_BURIED],
                ),
            )
            if reply[0] != b"ok":
                return None
            written += int(reply[1])
        return written

    async def extend(
        self, partitions: Iterable[OwnedPartition[Any]], link: ScriptClient
    ) -> Sequence[OwnedPartition[Any]]:
        """Extend the leases of partitions; gives those that were found lost.

        Not those that were given back meanwhile.

        :param link: of the loop that calls, which may be another than the partitions'.
        """
        # Those too that are lost by the clock here: whether another has them, Redis says.
        held = list(partitions)
        began = time.monotonic()
        lease_ms = round(self._options.lease_s * 1000)
        replies = await link.call_many(
            [
                StreamCall(
                    "extend",
                    (self._own(partition.number),),
                    (self._member, partition.epoch, lease_ms),
                )
                for partition in held
            ]
        )
        lost = []
        for partition, reply in zip(held, replies, strict=True):
            if reply == 1:
                partition.extended(began + self._options.lease_s)
            elif reply == 0 and not partition.given:
                lost.append(partition)
        return lost

    def _own(self, number: int) -> str:
        return self._keys.own(number, self._group)


def described(error: BaseException) -> str:
    """An error as it is kept beside what it concerns."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text[:_MOST_ERROR]

"""Inspection of a stream's processors: progress, members, resume, reset and removal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chancy.errors import ConfigurationError
from chancy.plugins.redis.streams.group.membership import read_plan
from chancy.plugins.redis.streams.producing.stream import Stream, check_name
from chancy.plugins.redis.transport.redis_client import Reply
from chancy.plugins.redis.transport.scripts import ScriptCall
from chancy.text import shown

#: Entries counted one by one where the server does not report how many are left to read; fewer if
#: they have more than 1 MiB in total.
MOST_COUNTED = 10_000
#: Where a processor can start. Scripts calculate with ids, which is exact up to 15 digits.
_START = re.compile(r"\$|[0-9]{1,15}(-[0-9]{1,15})?")
#: Partitions queried in one round trip.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """The progress of a processor in one partition.

    :ivar length: events stored in the partition.
    :ivar lag: events that the processor has not read yet; -1 if it never started.
    :ivar at_least: whether the lag may be larger, because the server does not report it, or not
        correctly, and counting stopped at 10,000 events or 1 MiB.
    :ivar pending: events that were read and not acknowledged.
    :ivar first_pending: the id of the oldest pending event.
    :ivar idle_s: seconds since the oldest pending event was delivered to its owner.
    :ivar owner: the member that owns the partition; None if it has no owner.
    :ivar lease_s: seconds until the owner's lease ends unless it is extended.
    :ivar epoch: how often the partition has changed owners.
    :ivar parked: the error that quarantined the partition; None if it is not quarantined.
    :ivar parked_id: the event that failed.
    :ivar halted: the error by which the owner halted the partition (`Halt`); None if it runs.
    :ivar dead: dead letters of ``Ignore(keep=True)`` and `RetryInPlace` that wait to be filed.
    :ivar dropped: events that senders dropped from the full partition, for all processors.
    :ivar lost: events that were dropped after this processor had read them.
    :ivar dead_dropped: dead letters dropped to make room for newer ones.
    :ivar fenced: exchanges refused because another member owned the partition.
    """

    stream: str
    processor: str
    partition: int
    length: int
    lag: int
    at_least: bool
    pending: int
    first_pending: str | None
    idle_s: float
    owner: str | None
    lease_s: float
    epoch: int
    parked: str | None
    parked_id: str | None
    halted: str | None
    dead: int
    dropped: int
    lost: int
    dead_dropped: int
    fenced: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """A worker in the group of a processor.

    :ivar lease_s: seconds until the member is presumed dead; below 0 if its lease has ended and
        no other member has noticed yet.
    :ivar assigned: the partitions that the plan assigns to it.
    :ivar owned: the partitions that it owns now.
    :ivar rebalances: how often the partitions of the group have been reassigned so far.
    """

    member: str
    lease_s: float
    assigned: Sequence[int]
    owned: Sequence[int]
    rebalances: int


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed of a processor.

    :ivar partitions: number of partitions that held state of the processor.
    :ivar pending: events that were read and not acknowledged.
    :ivar letters: dead letters.
    """

    partitions: int
    pending: int
    letters: int


class Inspection:
    """Inspects and administers one processor of a stream, declared in this process or not.

    Each method raises `BrokerError` when Redis is unavailable or refuses the command.
    """

    def __init__(self, stream: Stream[Any], processor: str) -> None:
        check_name("processor", processor)
        self._stream = stream
        self._processor = processor

    async def report(self) -> Sequence[PartitionReport]:
        """Return the progress of the processor in each partition, in order."""
        name = self._processor
        replies = await self._call_each(
            range(self._stream.partitions), "report", self._keys_of, (name, MOST_COUNTED)
        )
        return [self._read(number, reply) for number, reply in replies.items()]

    async def members(self) -> Sequence[MemberReport]:
        """Return the members of the processor's group, in the order in which they joined."""
        stream, name = self._stream, self._processor
        link, keys = stream.link, stream.keys
        alive = await link.command("ZRANGE", keys.members(name), 0, -1, "WITHSCORES")
        fields = ("version", "order", "assigned")
        plan = read_plan(await link.command("HMGET", keys.plan(name), *fields))
        seconds, micros = await link.command("TIME")
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        joined = {member: place for place, member in enumerate(plan.order)}
        owned: dict[str, list[int]] = {}
        for report in await self.report():
            if report.owner is not None and report.lease_s > 0:
                owned.setdefault(report.owner, []).append(report.partition)
        leases = {
            _text(member): (float(end) - now_ms) / 1000
            for member, end in zip(alive[::2], alive[1::2], strict=True)
        }
        return [
            MemberReport(
                member=member,
                lease_s=lease_s,
                assigned=sorted(plan.of(member)),
                owned=owned.get(member, []),
                rebalances=plan.version,
            )
            for member, lease_s in sorted(
                leases.items(),
                key=lambda lease: joined.get(lease[0], len(joined)),
            )
        ]

    async def resume(self, partitions: Iterable[int] | None = None) -> Mapping[int, str]:
        """Resume parked and halted partitions; return the error that stopped each of them.

        Processing continues at once, with the event that failed. A partition whose worker has not
        reported its halt to Redis yet is resumed too, but is not in the result.

        :param partitions: the partitions to resume; all unless given.
        """
        stream, name = self._stream, self._processor
        wanted = range(stream.partitions) if partitions is None else sorted(set(partitions))
        for number in wanted:
            if not 0 <= number < stream.partitions:
                raise ConfigurationError(
                    f"the stream {stream.name} has partitions 0 to {stream.partitions - 1}, "
                    f"not {number}"
                )
        replies = await self._call_each(
            wanted,
            "resume",
            lambda number: (stream.keys.park(number, name), stream.keys.own(number, name)),
            (),
        )
        lifted = {number: _text(reply[0]) for number, reply in replies.items() if reply is not None}
        if wanted:
            await self._notify("resume", () if partitions is None else wanted)
        return lifted

    async def reset(self, start: str = "0") -> tuple[int, Sequence[int]]:
        """Restart the processor at an id, except in partitions that a member owns.

        Returns the number of pending events that were discarded, and the owned partitions.

        :param start: ``0`` for all stored events, ``$`` for new events only, or the id of an
            event: the processor starts after it.
        :raises ConfigurationError: the start is none of these.
        """
        check_start(start)
        keys, name = self._stream.keys, self._processor
        replies = await self._call_each(
            range(self._stream.partitions),
            "reset",
            lambda number: (keys.log(number), keys.own(number, name), keys.park(number, name)),
            (name, start),
        )
        discarded = sum(int(reply[1]) for reply in replies.values() if reply[0] == 1)
        busy = [number for number, reply in replies.items() if reply[0] == 0]
        await self._notify("plan")
        return discarded, busy

    async def remove(self) -> Removed:
        """Remove its groups, quarantines, dead letters and members.

        Workers that still run the processor start it again.
        """
        keys, name, link = self._stream.keys, self._processor, self._stream.link
        for key in (keys.members(name), keys.plan(name), keys.ctl(name)):
            await link.command("DEL", key)
        replies = await self._call_each(
            range(self._stream.partitions), "forget", self._keys_of, (name,)
        )
        return Removed(*(sum(counts) for counts in zip(*replies.values(), strict=True)))

    def _keys_of(self, number: int) -> Sequence[str]:
        """All keys of the processor in a partition."""
        keys, name = self._stream.keys, self._processor
        return (
            keys.log(number),
            keys.own(number, name),
            keys.park(number, name),
            keys.dead(number, name),
            keys.stat(number),
        )

    async def _notify(self, reason: str, partitions: Iterable[int] = ()) -> None:
        """Notify the workers about some partitions; without any, about all."""
        ctl = self._stream.keys.ctl(self._processor)
        only = ",".join(map(str, partitions))
        fields = ("reason", reason, *(("partitions", only) if only else ()))
        await self._stream.link.run("streams.notify", (ctl,), fields)

    async def _call_each(
        self, numbers: Iterable[int], script: str, keys: Any, args: Sequence[Any]
    ) -> Mapping[int, Reply]:
        found: dict[int, Reply] = {}
        wanted = list(numbers)
        for at in range(0, len(wanted), _AT_ONCE):
            some = wanted[at : at + _AT_ONCE]
            calls = [ScriptCall(f"streams.{script}", keys(number), args) for number in some]
            for number, reply in zip(some, await self._stream.link.run_many(calls), strict=True):
                if isinstance(reply, Exception):
                    raise reply
                found[number] = reply
        return found

    def _read(self, number: int, reply: Reply) -> PartitionReport:
        length, lag, at_least, pending, first, idle_ms, owner, left_ms, epoch = reply[:9]
        at, parked_id, error, dead, dropped, lost, dead_dropped, halted, fenced = reply[9:]
        return PartitionReport(
            stream=self._stream.name,
            processor=self._processor,
            partition=number,
            length=int(length),
            lag=int(lag),
            at_least=at_least == 1,
            pending=int(pending),
            first_pending=_text(first) if first else None,
            idle_s=int(idle_ms) / 1000,
            owner=_text(owner) if owner and left_ms else None,
            lease_s=int(left_ms) / 1000,
            epoch=int(epoch or 0),
            parked=_text(error or b"") if at else None,
            parked_id=_text(parked_id) if parked_id else None,
            halted=_text(halted) if halted else None,
            dead=int(dead),
            dropped=int(dropped or 0),
            lost=int(lost or 0),
            dead_dropped=int(dead_dropped or 0),
            fenced=int(fenced or 0),
        )


def check_start(start: str) -> None:
    """Raise `ConfigurationError` unless a processor can start there; see `Inspection.reset`."""
    if not _START.fullmatch(start):
        raise ConfigurationError(f"the start {shown(start)} is not 0, $ or the id of an event")


async def processors(stream: Stream[Any]) -> Sequence[str]:
    """Return the names of all processors that have started on a stream, on any worker.

    :raises BrokerError: Redis is unavailable or refuses the command.
    """
    calls = [
        ScriptCall("streams.groups", (stream.keys.log(number),))
        for number in range(stream.partitions)
    ]
    found: set[str] = set()
    for reply in await stream.link.run_many(calls):
        if isinstance(reply, Exception):
            raise reply
        found.update(map(_text, reply))
    return sorted(found)


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value

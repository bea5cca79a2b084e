"""Membership: which workers share a processor's partitions, and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.script_client import Reply, ScriptClient

Action = Literal["join", "leave", "reap", "beat"]


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """Which member has which partition.

    :ivar version: each change makes a higher one; 0 if there is none.
    :ivar order: the members as they have joined.
    :ivar assigned: the member of each partition, by number; empty without members.
    """

    version: int
    order: Sequence[str]
    assigned: Sequence[str]

    def of(self, member: str) -> frozenset[int]:
        """The partitions of a member."""
        return frozenset(number for number, one in enumerate(self.assigned) if one == member)


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    """What a change of the membership has come to.

    :ivar version: of the plan that holds now.
    :ivar belongs: whether the member who asked is in it.
    :ivar last: id of the last message of the control stream.
    :ivar dead: members whose lease had ended, and who are out now.
    """

    version: int
    belongs: bool
    last: str
    dead: Sequence[str]


class Membership:
    """The members of a processor, as one of them sees it."""

    def __init__(self, link: ScriptClient, processor: Processor[Any], member: str) -> None:
        keys, name = processor.stream.keys, processor.name
        self._link = link
        self._processor = processor
        self.member = member
        self._keys = (keys.members(name), keys.plan(name), keys.ctl(name))

    async def change(self, action: Action) -> MembershipStatus:
        """Join, leave, drop the dead, or say that this member lives.

        :raises BrokerUnavailable: it may have happened; a repetition does no harm.
        """
        options = self._processor.options
        reply = await self._link.call(
            "membership",
            self._keys,
            (
                action,
                self.member,
                round(options.lease_s * 1000),
                self._processor.stream.partitions,
                options.strategy,
            ),
        )
        version, belongs, last, *dead = reply
        return MembershipStatus(
            version, belongs == 1, last.decode(), [one.decode() for one in dead]
        )

    async def plan(self) -> PartitionPlan:
        """The plan as it stands."""
        found = await self._link.command("HMGET", self._keys[1], "version", "order", "assigned")
        return read_plan(found)

    async def notify(self, reason: str) -> None:
        """Write to the control stream that something has changed."""
        await self._link.command(
            "XADD", self._keys[2], "MAXLEN", "~", 256, "*", "reason", reason, "member", self.member
        )


def read_plan(found: Reply) -> PartitionPlan:
    """A plan of the fields version, order, assigned."""
    version, order, assigned = (one.decode() if one else "" for one in found)
    names = order.split(",") if order else []
    places = assigned.split(",") if assigned else []
    return PartitionPlan(int(version or 0), names, [names[int(place) - 1] for place in places])

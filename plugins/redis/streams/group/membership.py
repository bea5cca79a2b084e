"""Membership: the workers that share a processor's partitions, and the assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.redis_client import RedisClient, Reply

Action = Literal["join", "leave", "reap", "beat"]


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The assignment of partitions to members.

    :ivar version: rises with each change; 0 if there is no plan.
    :ivar order: the members, in the order in which they joined.
    :ivar assigned: the member of each partition, by number; empty without members.
    """

    version: int
    order: Sequence[str]
    assigned: Sequence[str]

    def of(self, member: str) -> frozenset[int]:
        """Return the partitions of a member."""
        return frozenset(number for number, owner in enumerate(self.assigned) if owner == member)


@dataclass(frozen=True, slots=True)
class MembershipStatus:
    """The result of a membership change.

    :ivar version: the version of the current plan.
    :ivar belongs: whether the calling member is in the group.
    :ivar last: the id of the last message of the control stream.
    :ivar alive: number of members whose lease has not ended.
    :ivar dead: members that were removed because their lease had ended.
    """

    version: int
    belongs: bool
    last: str
    alive: int
    dead: Sequence[str]


class Membership:
    """The group of a processor, used by one of its members."""

    def __init__(self, link: RedisClient, processor: Processor[Any], member: str) -> None:
        keys, name = processor.stream.keys, processor.name
        self._link = link
        self._processor = processor
        self.member = member
        self._keys = (keys.members(name), keys.plan(name), keys.ctl(name))
        self._plan = PartitionPlan(0, (), ())
        #: The version of the plan and the id of its message, which differs for each plan.
        self._current: Reply = [None, None]

    async def change(self, action: Action) -> MembershipStatus:
        """Join, leave, remove dead members, or send a heartbeat.

        :raises BrokerUnavailable: the change may have been made; it is safe to retry.
        """
        options = self._processor.options
        reply = await self._link.run(
            "streams.membership",
            self._keys,
            (
                action,
                self.member,
                round(options.lease_s * 1000),
                self._processor.stream.partitions,
                options.strategy,
            ),
        )
        version, belongs, last, alive, *dead = reply
        return MembershipStatus(
            version, belongs == 1, last.decode(), alive, [name.decode() for name in dead]
        )

    async def plan(self) -> PartitionPlan:
        """Return the current plan; all of it is read only after a change."""
        current = await self._link.command("HMGET", self._keys[1], "version", "id")
        if current != self._current:
            fields = ("version", "id", "order", "assigned")
            version, id, *rest = await self._link.command("HMGET", self._keys[1], *fields)
            self._plan, self._current = read_plan([version, *rest]), [version, id]
        return self._plan

    async def notify(self, reason: str) -> None:
        """Notify the other members through the control stream."""
        fields = ("reason", reason, "member", self.member)
        await self._link.run("streams.notify", self._keys[2:], fields)


def read_plan(found: Reply) -> PartitionPlan:
    """Return the plan of the fields version, order and assigned."""
    version, order, assigned = (field.decode() if field else "" for field in found)
    names = order.split(",") if order else []
    places = assigned.split(",") if assigned else []
    return PartitionPlan(int(version or 0), names, [names[int(place) - 1] for place in places])

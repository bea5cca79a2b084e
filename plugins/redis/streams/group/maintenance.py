"""Maintenance of a group: dead members, acknowledgements lost by a failover, and full logs."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from chancy.errors import BrokerError
from chancy.plugins.redis.streams.group.membership import Membership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition
from chancy.plugins.redis.streams.processing.processor import Processor
from chancy.plugins.redis.transport.redis_client import RedisClient
from chancy.plugins.redis.transport.scripts import ScriptCall

logger = logging.getLogger("chancy.redis.streams")


#: How many members of a large group look for dead ones per interval.
_REAPERS = 4


class Maintenance:
    """Maintenance that the members perform for the group, at randomized intervals.

    :param members: returns the number of members that are alive.
    """

    def __init__(
        self,
        link: RedisClient,
        processor: Processor[Any],
        membership: Membership,
        partitions: Callable[[], Sequence[OwnedPartition[Any]]],
        members: Callable[[], int],
    ) -> None:
        self._link = link
        self._processor = processor
        self._membership = membership
        self._partitions = partitions
        self._members = members
        self._every_s = max(processor.options.check_s, processor.options.lease_s / 8)

    async def serve(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(self._every_s * random.uniform(0.5, 1.0))
            try:
                await self.reap()
                await self._tend_partitions()
            except BrokerError as error:
                logger.warning(
                    "stream_maintenance_failed processor=%s error=%s", self._processor.id, error
                )

    async def reap(self) -> None:
        """Remove dead members; in a large group, a few members do it at a time."""
        if random.random() * self._members() >= _REAPERS:
            return
        status = await self._membership.change("reap")
        for member in status.dead:
            logger.warning("member_found_dead processor=%s member=%s", self._processor.id, member)

    async def _tend_partitions(self) -> None:
        """Repeat lost acknowledgements, and trim the logs; together, the members cover all."""
        stream, name, member = self._processor.stream, self._processor.name, self._membership.member
        calls: list[ScriptCall] = []
        for partition in self._partitions():
            log = stream.keys.log(partition.number)
            if partition.confirmed:
                own = stream.keys.own(partition.number, name)
                args = (name, member, partition.epoch, partition.confirmed)
                calls.append(ScriptCall("streams.reack", (own, log), args))
            calls.append(ScriptCall("streams.trim", (log,), (stream.size,)))
        await self._link.run_many(calls)

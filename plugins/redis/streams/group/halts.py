"""The partitions that a policy has halted in this worker, reported to Redis for inspection."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from chancy.errors import BrokerError
from chancy.plugins.redis.streams.processing.ownership import Ownership
from chancy.plugins.redis.streams.processing.partition import OwnedPartition

logger = logging.getLogger("chancy.redis.streams")

#: The exit code of the process when a policy ends it.
HALTED = 5
#: Seconds until a report is retried when Redis is unavailable.
_AGAIN_S = 1.0


class Exit:
    """The exit of the process that a policy requests, shared by all its processors.

    :ivar code: the exit code of the process.
    """

    code = 0

    def request(self, *, ending: bool) -> None:
        """Send SIGTERM to this process, once: a second one would end it immediately.

        :param ending: the process is already stopping.
        """
        if not self.code and not ending:
            logger.critical("process_ends exit_code=%d: requested by a policy", HALTED)
            os.kill(os.getpid(), signal.SIGTERM)
        self.code = HALTED


class Halts:
    """The halted partitions of this worker, which alone uses them; Redis has them for commands."""

    def __init__(self, ownership: Ownership, leave: Exit) -> None:
        self._exit = leave
        self._ownership = ownership
        self.numbers: set[int] = set()
        self._reporting: set[asyncio.Task[None]] = set()

    def add(self, partition: OwnedPartition[Any], *, leave: bool, ending: bool) -> None:
        """Add a halted partition, whose ``halted`` has the error.

        :param leave: request the exit of the process.
        :param ending: the process is already stopping.
        """
        self.numbers.add(partition.number)
        self._report(partition)
        if leave:
            self._exit.request(ending=ending)

    def drop(self, partition: OwnedPartition[Any]) -> None:
        """Remove a partition that is released: its next owner processes it."""
        self.numbers.discard(partition.number)

    def lift(
        self, partitions: Mapping[int, OwnedPartition[Any]], only: Collection[int] | None
    ) -> Sequence[OwnedPartition[Any]]:
        """Lift halts; return the partitions that continue now.

        :param only: the partitions to lift; None: all.
        """
        lifted = []
        for number in sorted(self.numbers if only is None else self.numbers & set(only)):
            self.numbers.discard(number)
            partition = partitions.get(number)
            if partition is not None and not partition.over:
                lifted.append(partition)
                self._report(partition)
        return lifted

    def _report(self, partition: OwnedPartition[Any]) -> None:
        task = asyncio.create_task(
            self._report_until_current(partition), name=f"halt {partition.number}"
        )
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)

    async def _report_until_current(self, partition: OwnedPartition[Any]) -> None:
        """Report until Redis has the current state, which may change meanwhile."""
        while not partition.over:
            halted = partition.number in self.numbers
            try:
                await self._ownership.halt(partition, partition.halted if halted else "")
            except BrokerError:
                await asyncio.sleep(_AGAIN_S)
                continue
            if halted == (partition.number in self.numbers):
                return
